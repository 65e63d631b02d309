"""tierKV itself: a vault, a sidecar, and this process in place of the shim inside an engine.

A restore is an engine's: one `prefetch` frame, then every block verified, decoded and placed in the
arena, which the sidecar owns. So blocks land there, and not in the target that other rivals fill. The arena
holds one prefix and a half, so that the next restore never finds its blocks there.
"""

import ctypes
import itertools
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any

from .base import HOST, START_TIMEOUT_S, STOP_TIMEOUT_S, Block, Rival, Setup, free_port

PROJECT = Path(__file__).resolve().parents[3]
sys.path.append(str(PROJECT / "python-shim"))

from tierkv.connectors.vllm.limits import LOCAL_PROTOCOL  # noqa: E402
from tierkv.connectors.vllm.link.frames import Frame, FrameDecoder, encode  # noqa: E402

#: One layer of a block: 16 tokens, 8 KV heads of 128, K and V, bf16.
TOKENS, HEADS, DIM, ITEM = 16, 8, 128, 2
LAYER_BYTES = TOKENS * HEADS * DIM * 2 * ITEM
SMALL_GROUP, SMALL_BYTES = 1, 4096
NAMESPACE = bytes(range(32))
ARENA_SHARE = 1.5
STORES = 4  # of a whole set of blocks, in the vault's memory
SAVE_ITEMS_MAX = 512
SAVED_POLL_S = 0.002
#: Share of the last store's time before which nobody asks whether a store of as many blocks is done.
EARLIEST = 0.8
#: How long another free slot is waited for before a store begins.
STAGE_WAIT_S = 0.2
FRAME_TIMEOUT_S = 120
ONE_PAIR = struct.Struct("<II")


class Connection:
    """One connection to the sidecar; `wait` reads frames until a wanted one arrives."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(FRAME_TIMEOUT_S)
        self._socket.connect(path)
        self._decoder = FrameDecoder()
        #: Descriptors received with frames; only the arena's is sent.
        self.descriptors: list[int] = []

    def send(self, frame: Frame) -> None:
        self._socket.sendall(encode(frame))

    def wait(self, take: Callable[[Frame], bool]) -> None:
        """Hands frames to `take` until it returns true."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 20, 1)
            self.descriptors += descriptors
            if not data:
                break
            taken = [take(frame) for frame in self._decoder.feed(data)]
            if any(taken):
                return
        raise ConnectionError("the sidecar closed the connection; set RIVALS_DEBUG=1 to see why")

    def has_more(self, timeout_s: float) -> bool:
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def close(self) -> None:
        self._socket.close()


class TierKv(Rival):
    """Attention blocks as a real engine registers them: strided pages, one record each."""

    int8 = False

    def start(self, setup: Setup) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tierkv-rivals-"))
        self.block_bytes = setup.block_bytes
        self.socket_path = str(self.folder / "s.sock")
        self._start_processes(setup)
        hello = {
            "t": "hello",
            "protocol": LOCAL_PROTOCOL,
            "pid": os.getpid(),
            "shim": "bench",
            "vllm": "bench",
        }
        hello |= {"engine": "bench", "rank": 0, "world": 1, "shards": 1}
        self.status_link = Connection(self.socket_path)
        self.status_link.send({"t": "hello", "protocol": LOCAL_PROTOCOL, "role": "status"})
        self.scheduler = Connection(self.socket_path)
        self.scheduler.send(hello | {"role": "scheduler"})
        name = {"t": "namespace", "namespace": NAMESPACE, "model": "bench", "parts": {}}
        self.scheduler.send(name)
        self.worker = Connection(self.socket_path)
        self.worker.send(hello | {"role": "worker"})
        tokens = setup.blocks * TOKENS
        register = {"model": "bench", "max_model_len": tokens, "step_tokens": tokens}
        register["kv_blocks"] = 1024
        self.worker.send({"t": "register", **register, "groups": groups(setup.block_bytes)})
        self.arena, self.memory = {}, None
        self.credits: list[tuple[int, int]] = []
        self.staged: list[list[Any]] = []
        self.store_s: dict[int, float] = {}
        self.plans = itertools.count(1)
        self.open_plan: int | None = None
        self.worker.wait(self._take_credits)
        self.scheduler.wait(lambda frame: frame["t"] == "restore" and frame["on"])
        self._wait_touched()

    def _start_processes(self, setup: Setup) -> None:
        vault = f"{HOST}:{free_port()}"
        store_bytes = STORES * setup.blocks * (setup.block_bytes + SMALL_BYTES) + (64 << 20)
        vault_file = self.folder / "vault.toml"
        vault_file.write_text(
            f'[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\n'
            f'listen = "{vault}"\nmax_bytes = {store_bytes}\n'
        )
        sidecar_file = self.folder / "tierkv.toml"
        arena_bytes = int(ARENA_SHARE * setup.blocks * setup.block_bytes)
        sidecar_file.write_text(
            f'[cluster]\nrole = "inference"\nkv_cold = "{vault}"\n'
            f"[turbo_quant]\nenabled = {str(self.int8).lower()}\n"
            f'[sidecar]\nsocket = "{self.socket_path}"\narena_bytes = {arena_bytes}\nautostart = false\n'
            '[restore]\nwait_ms = 60000\nstall_ms = 30000\nwhen = "always"\n'
        )
        self.processes = [start("vault", vault_file), start("sidecar", sidecar_file)]

    def stage(self, keys, blocks):
        """Fills slots, as far as the sidecar gives some: LMCache's and Mooncake's blocks lie in their memory, too."""
        while len(self.credits) < len(keys) and self.worker.has_more(STAGE_WAIT_S):
            self.worker.wait(self._take_credits)
        self.staged = [
            self._fill(*pair) for pair in list(zip(keys, blocks, strict=True))[: len(self.credits)]
        ]

    def put(self, keys, blocks):
        before = self._counter("blocks_saved")
        began = time.monotonic()
        items, self.staged = self.staged, []
        for at in range(0, len(items), SAVE_ITEMS_MAX):
            self._save(items[at : at + SAVE_ITEMS_MAX])
        at = len(items)
        while at < len(keys):
            if not self.credits:
                self.worker.wait(self._take_credits)
            end = min(len(keys), at + len(self.credits), at + SAVE_ITEMS_MAX)
            self._save([self._fill(keys[i], blocks[i]) for i in range(at, end)])
            at = end
        # Each status takes the sidecar time: no store of the same size was done before most of the last store's time.
        time.sleep(max(0, began + EARLIEST * self.store_s.get(len(keys), 0) - time.monotonic()))
        deadline = began + FRAME_TIMEOUT_S
        while (saved := self._counter("blocks_saved") - before) < len(keys):
            if time.monotonic() > deadline:
                raise TimeoutError(f"tierKV: {saved} of {len(keys)} blocks were saved")
            time.sleep(SAVED_POLL_S)
        self.store_s[len(keys)] = time.monotonic() - began

    def _fill(self, key: str, block: Block) -> list[Any]:
        slot, generation = self.credits.pop(0)
        ctypes.memmove(self._address(slot), block.address, len(block.view))
        group = 0 if len(block.view) == self.block_bytes else SMALL_GROUP
        return [slot, generation, group, bytes.fromhex(key), bytes(32), TOKENS]

    def _save(self, items: list[list[Any]]) -> None:
        named = {"arena": self.arena["arena"], "namespace": NAMESPACE}
        self.worker.send({"t": "save", **named, "items": items})

    def get_into(self, keys, blocks):  # noqa: ARG002 - they land in the arena
        self._release()
        self.slots: list[int] = []
        self.open_plan = self._prefetch(keys, 0, 0)
        reasons: list[str] = []

        def take(frame: Frame) -> bool:
            if frame.get("plan") != self.open_plan:
                return False
            if frame["t"] == "placed":
                self.slots += struct.unpack(f"<{len(frame['slots']) // 4}I", frame["slots"])
            elif frame["t"] == "done":
                reasons.append(frame["reason"])
            return bool(reasons)

        self.scheduler.wait(take)
        if len(self.slots) != len(keys):
            raise RuntimeError(f"tierKV: {len(self.slots)} of {len(keys)} blocks placed: {reasons}")

    def landed(self, blocks):
        start = [slot * self.arena["slot_bytes"] for slot in self.slots]
        view = memoryview(self.memory)
        return [view[at : at + len(b.view)] for at, b in zip(start, blocks, strict=True)]

    def exists(self, keys):
        self._release()
        self.open_plan = self._prefetch(keys, len(keys), SMALL_GROUP)
        held: list[bytes] = []

        def take(frame: Frame) -> bool:
            if frame["t"] == "held" and frame["plan"] == self.open_plan:
                held.append(frame["groups"][0]["held"])
            return bool(held)

        self.scheduler.wait(take)
        return [bool(held[0][at // 8] >> at % 8 & 1) for at in range(len(keys))]

    def stop(self):
        for connection in (self.scheduler, self.worker, self.status_link):
            connection.close()
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self.folder)

    def server_pids(self):
        return [process.pid for process in self.processes]

    def local_bytes(self):
        """Returns blocks served from the sidecar's own memory; 0, or the figures mean nothing."""
        return self._counter("blocks_restored_local")

    def _prefetch(self, keys, first: int, group: int) -> int:
        plan = next(self.plans)
        hashes = b"".join(bytes.fromhex(key) for key in keys)
        wanted = {"group": group, "class": "kv", "hashes": hashes, "from": first}
        self.scheduler.send({"t": "prefetch", "req": "bench", "plan": plan, "groups": [wanted]})
        return plan

    def _release(self) -> None:
        if self.open_plan is not None:
            self.scheduler.send({"t": "release", "req": "bench", "plan": self.open_plan})
        self.open_plan = None

    def _take_credits(self, frame: Frame) -> bool:
        if frame["t"] == "refuse":
            raise ConnectionError(f"tierKV: {frame['message']}")
        if frame["t"] == "arena":
            self.arena = frame
            descriptor = self.worker.descriptors.pop()
            self.memory = mmap(descriptor, frame["bytes"])
            os.close(descriptor)
            self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
            self.worker.send({"t": "mapped", "arena": frame["arena"]})
        elif frame["t"] == "credits":
            self.credits += ONE_PAIR.iter_unpack(frame["slots"])
            return True
        return False

    def _wait_touched(self) -> None:
        """Touches our side of the arena, as the shim does when it maps it."""
        while True:
            (engine,) = self._status()["engines"]
            if engine["arena"]["touchedSlots"] == engine["arena"]["slotCount"]:
                break
            time.sleep(0.02)
        for at in range(0, self.arena["bytes"], 4096):
            self.memory[at]

    def _address(self, slot: int) -> int:
        return self.base + slot * self.arena["slot_bytes"]

    def _status(self) -> dict[str, Any]:
        replies: list[dict[str, Any]] = []

        def take(frame: Frame) -> bool:
            if frame["t"] == "status_reply":
                replies.append(frame["status"])
            return bool(replies)

        self.status_link.send({"t": "status"})
        self.status_link.wait(take)
        return replies[0]

    def _counter(self, name: str) -> int:
        return int(self._status()["counters"][name])


class TierKvInt8(TierKv):
    """The same with INT8 on the way: payload still counts the bf16 bytes that came back."""

    int8 = True
    is_exact = False


def groups(block_bytes: int) -> list[dict[str, object]]:
    """The attention group of the blocks, and a small opaque one for look-ups."""
    if block_bytes % LAYER_BYTES:
        raise ValueError(
            f"blocks of {block_bytes} bytes: tierKV's rival takes multiples of {LAYER_BYTES}"
        )
    token_stride = DIM * 2 * ITEM
    attention = {
        "group": 0,
        "class": "kv",
        "layout": "attention",
        "dtype": "bf16",
        "tokens": TOKENS,
        "tail": 0,
        "layers": block_bytes // LAYER_BYTES,
        "heads": HEADS,
        "dim_k": DIM,
        "dim_v": DIM,
        "layer_bytes": LAYER_BYTES,
        "key_offset": 0,
        "value_offset": DIM * ITEM,
        "head_stride": TOKENS * token_stride,
        "token_stride": token_stride,
    }
    small = attention | {"group": SMALL_GROUP, "layout": "opaque", "dtype": "u8", "layers": 1}
    small |= {"layer_bytes": SMALL_BYTES, "heads": 0, "dim_k": 0, "dim_v": 0}
    small |= {"value_offset": 0, "head_stride": 0, "token_stride": 0}
    return [attention, small]


def start(command: str, config: Path) -> subprocess.Popen[bytes]:
    """Starts `tierkv COMMAND` and waits for its ready line."""
    sink = sys.stderr if os.environ.get("RIVALS_DEBUG") else subprocess.DEVNULL
    argv = ["node", str(PROJECT / "bin" / "tierkv.js"), command, "--json", "--config", str(config)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sink)
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT_S
    line = process.stdout.readline()
    if not line or json.loads(line).get("event") != "ready" or time.monotonic() > deadline:
        process.kill()
        raise RuntimeError(f"tierkv {command} did not start; set RIVALS_DEBUG=1 to see why")
    return process
