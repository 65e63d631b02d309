"""A scripted sidecar on a real Unix socket: it answers as told, records every frame, and can hang, refuse or die."""

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame, FrameDecoder, encode

#: Only a hung test reaches it, however busy the machine is.
WAIT_S = 90.0
WELCOME: Frame = {
    "t": "welcome",
    "protocol": limits.LOCAL_PROTOCOL,
    "sidecar": "0.0.0",
    "wait_ms": 5000,
    "stall_ms": 5000,
    "save_slots_max": 64,
}


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Poll until `holds()` is true and give its value; AssertionError naming `what` otherwise."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.002)
    return value


def shared_memory(size: int) -> int:
    """Give a descriptor of memory as a sidecar makes it: a sealed memfd, elsewhere a file without a name."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    fd = os.memfd_create("tierkv-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


class FakeArena:
    """`slot_count` slots of shared memory, as the sidecar would share it."""

    def __init__(self, slot_bytes: int, slot_count: int) -> None:
        self.slot_bytes = slot_bytes
        self.slot_count = slot_count
        self.fd = shared_memory(slot_bytes * slot_count)
        self.memory = mmap.mmap(self.fd, slot_bytes * slot_count)

    def slot(self, number: int) -> bytes:
        start = number * self.slot_bytes
        return bytes(self.memory[start : start + self.slot_bytes])

    def write(self, number: int, data: bytes) -> None:
        start = number * self.slot_bytes
        self.memory[start : start + len(data)] = data

    def frame(self, arena_id: int) -> Frame:
        """The `arena` frame that announces it; `fd` travels beside it, None: without a descriptor."""
        return {
            "t": "arena",
            "arena": arena_id,
            "fd": self.fd,
            "bytes": self.slot_bytes * self.slot_count,
            "slot_bytes": self.slot_bytes,
            "slot_count": self.slot_count,
        }

    def close(self) -> None:
        os.close(self.fd)


def pairs(*slots: tuple[int, int]) -> bytes:
    """Packs (slot, generation) pairs for a `credits` frame."""
    return b"".join(struct.pack("<II", *slot) for slot in slots)


class FakeSidecar:
    """Serves connections one after another or together; `answer` is sent after each hello, None = silence.

    `fidelity` answers `weights`; None = silence.
    """

    def __init__(self, path: str, answer: Frame | None = WELCOME, fidelity: int | None = 0) -> None:
        self.path = path
        self.fidelity = fidelity
        self.otherwise = 0
        self.answer = answer
        self.frames: list[Frame] = []
        self.hellos: list[Frame] = []
        self.weights: list[Frame] = []
        self.connections: list[socket.socket] = []
        # Held from an answer until its connection is listed, so that who sends after it takes that connection.
        self._welcoming = threading.Lock()
        self.reads = threading.Event()
        self.reads.set()
        self._closed = False
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(path)
        self._server.listen(8)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Dies as a killed process does: every socket ends, the path stays behind."""
        self._closed = True
        self.reads.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(timeout=WAIT_S)

    def drop_connections(self) -> None:
        """Ends every connection and goes on listening."""
        # A serving thread removes its connection from the list; the loop must not run over the same list.
        with self._welcoming:
            dropped, self.connections = self.connections, []
        for connection in dropped:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def send(self, *frames: Frame) -> None:
        """Sends on the newest connection."""
        for frame in frames:
            fields = {key: value for key, value in frame.items() if key != "fd"}
            self.send_bytes(encode(fields), frame.get("fd"))

    def send_bytes(self, data: bytes, fd: int | None = None) -> None:
        def newest() -> socket.socket | None:
            with self._welcoming:
                return self.connections[-1] if self.connections else None

        connection = wait_until(newest, "a connection")
        sent = 0 if fd is None else socket.send_fds(connection, [data], [fd])
        connection.sendall(data[sent:])

    def expect(self, kind: str, count: int = 1) -> list[Frame]:
        """Waits until `count` frames of a kind have come, and gives all of that kind."""

        def enough() -> list[Frame]:
            found = [frame for frame in list(self.frames) if frame["t"] == kind]
            return found if len(found) >= count else []

        return list(wait_until(enough, f"{count} frames {kind!r}"))

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        with connection, contextlib.suppress(OSError):
            try:
                while data := connection.recv(65536):
                    for frame in decoder.feed(data):
                        self._take(connection, frame)
                    self.reads.wait()
            finally:
                with self._welcoming:
                    if connection in self.connections:
                        self.connections.remove(connection)

    def _take(self, connection: socket.socket, frame: Frame) -> None:
        if frame["t"] == "hello":
            self.hellos.append(frame)
            if self.answer is not None:
                with self._welcoming:
                    connection.sendall(encode(self.answer))
                    self.connections.append(connection)
                if self._closed:  # killed between the two
                    self.drop_connections()
        elif frame["t"] == "ping":
            connection.sendall(encode({"t": "pong", "n": frame["n"]}))
        elif frame["t"] == "weights":
            self.weights.append(frame)
            if self.fidelity is not None:
                said = {"fidelity": self.fidelity, "otherwise": self.otherwise}
                connection.sendall(encode({"t": "fidelity", "weights": frame["weights"], **said}))
        else:
            self.frames.append(frame)
