"""Interface of a rival, and helpers that rivals share."""

import ctypes
import mmap
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 10


class Block(NamedTuple):
    """One KV block in the arena: the same bytes as a view and as an address."""

    view: memoryview
    address: int


class Arena:
    """Shared memory of the client, touched once so that no page fault is ever timed."""

    def __init__(self, size: int):
        self.size = size
        self.memory = mmap.mmap(-1, size)  # anonymous and shared
        self.view = memoryview(self.memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.address, 0, size)

    def blocks(self, offset: int, size: int, count: int) -> list[Block]:
        starts = range(offset, offset + size * count, size)
        return [Block(self.view[at : at + size], self.address + at) for at in starts]


class Setup(NamedTuple):
    """Parameters of a rival: at most `lanes` connections or threads, batches of up to `blocks` blocks."""

    arena: Arena
    lanes: int
    block_bytes: int
    blocks: int


class Rival(ABC):
    """A store on loopback. Batches are lists of equal length; a miss or a failure raises."""

    #: Whether the bytes that come back are the bytes that were stored.
    is_exact = True

    @abstractmethod
    def start(self, setup: Setup) -> None:
        """Start an empty store and its client."""

    def stage(self, keys: Sequence[str], blocks: Sequence[Block]) -> None:  # noqa: B027 - most have nothing to do
        """Bring blocks to where `put` sends them from. Not timed: engines copy into any store's memory."""

    @abstractmethod
    def put(self, keys: Sequence[str], blocks: Sequence[Block]) -> None: ...

    @abstractmethod
    def get_into(self, keys: Sequence[str], blocks: Sequence[Block]) -> None: ...

    def landed(self, blocks: Sequence[Block]) -> list[memoryview]:
        """Return where the last `get_into` put its blocks."""
        return [block.view for block in blocks]

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> list[bool]: ...

    @abstractmethod
    def stop(self) -> None: ...

    def local_bytes(self) -> int:
        """Return bytes served from the client's own memory; above 0 a restore measured nothing."""
        return 0

    def server_pids(self) -> list[int]:
        """Return the processes whose CPU time counts as the server's."""
        return []


class Server:
    """A server process. Its output goes nowhere unless RIVALS_DEBUG is set."""

    def __init__(self, *command: str, port: int):
        sink = sys.stderr if os.environ.get("RIVALS_DEBUG") else subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=ROOT
        )
        self.pid = self.process.pid
        self._wait_for(port, command[0])

    def _wait_for(self, port: int, name: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(
                    f"{name} exited with code {self.process.returncode}; set RIVALS_DEBUG=1 to see why"
                )
            if accepts(port):
                return
            time.sleep(0.02)
        self.stop()
        raise TimeoutError(f"{name} did not listen on port {port} within {START_TIMEOUT_S} s")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


class Lanes:
    """Runs a batch as contiguous slices, one thread for each client object."""

    def __init__(self, clients: Sequence):
        self.clients = clients
        self._pool = ThreadPoolExecutor(len(clients))

    def run(self, work: Callable, *columns: Sequence) -> list:
        """Calls work(client, *slice of each column) and returns the results in order."""
        if len(self.clients) == 1:
            return [work(self.clients[0], *columns)]
        step = -(-len(columns[0]) // len(self.clients))
        slices = [
            [column[at : at + step] for column in columns] for at in range(0, len(columns[0]), step)
        ]
        jobs = [
            self._pool.submit(work, client, *part)
            for client, part in zip(self.clients, slices, strict=False)
        ]
        return [job.result() for job in jobs]

    def close(self) -> None:
        self._pool.shutdown()


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return probe.getsockname()[1]
