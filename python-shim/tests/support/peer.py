"""An engine as the sidecar sees it, as a program: saves pages, or restores them, over a socket."""

import json
import sys
import threading
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.pages.arena import Arena

HEADS, TOKENS, DIM, LAYERS = 2, 16, 32, 2
STRIDE = DIM * 2 * 2
PAGE_BYTES = LAYERS * HEADS * TOKENS * STRIDE
BLOCKS = 3
NAMESPACE = b"n" * 32
HASHES = [bytes([number]) * 32 for number in range(1, BLOCKS + 1)]
WAIT_S = 60.0
GROUP: Frame = {
    "group": 0,
    "class": "kv",
    "layout": "attention",
    "dtype": "bf16",
    "tokens": TOKENS,
    "tail": 0,
    "layers": LAYERS,
    "heads": HEADS,
    "dim_k": DIM,
    "dim_v": DIM,
    "layer_bytes": HEADS * TOKENS * STRIDE,
    "key_offset": 0,
    "value_offset": DIM * 2,
    "head_stride": TOKENS * STRIDE,
    "token_stride": STRIDE,
}


def page(block: int) -> bytes:
    """What block `block` holds."""
    return bytes((block * 7 + at) % 120 for at in range(PAGE_BYTES))


class Side:
    """One connection; keeps what it hears, and the arena it was given."""

    def __init__(self, path: str, role: str) -> None:
        self.heard: list[Frame] = []
        self.arena: Arena | None = None
        self._new = threading.Condition()
        hello = {"t": "hello", "protocol": limits.LOCAL_PROTOCOL, "role": role, "engine": "peer"}
        hello |= {"rank": 0, "world": 1, "shards": 1, "pid": 1, "shim": "test", "vllm": "test"}
        self.channel = Channel(path, hello, self, dict)
        self.channel.start()

    def on_open(self, welcome: Frame) -> None:
        self.on_frame(welcome)

    def on_frame(self, frame: Frame) -> None:
        if frame["t"] == "arena":
            size, slots = frame["bytes"], frame["slot_count"]
            self.arena = Arena(frame["arena"], frame["fd"], size, frame["slot_bytes"], slots)
        with self._new:
            self.heard.append(frame)
            self._new.notify_all()

    def on_close(self) -> None: ...

    def wait(self, kind: str) -> Frame:
        """Give the first frame of a kind."""

        def found() -> list[Frame]:
            return [frame for frame in self.heard if frame["t"] == kind]

        with self._new:
            if not self._new.wait_for(found, WAIT_S):
                raise TimeoutError(f"no {kind}: {[frame['t'] for frame in self.heard]}")
            return found()[0]


def main() -> None:
    path, what = sys.argv[1:]
    scheduler, worker = Side(path, "scheduler"), Side(path, "worker")
    scheduler.wait("welcome")
    worker.wait("welcome")
    named = {"t": "namespace", "namespace": NAMESPACE, "model": "peer", "parts": {}}
    scheduler.channel.send(named)
    lengths = {"max_model_len": 512, "step_tokens": 512}
    shape = {"model": "peer", **lengths, "kv_blocks": 100, "groups": [GROUP]}
    worker.channel.send({"t": "register", **shape})
    frame = worker.wait("arena")
    worker.channel.send({"t": "mapped", "arena": frame["arena"]})
    assert worker.arena is not None
    scheduler.wait("restore")
    done = save(worker) if what == "save" else restore(scheduler, worker)
    sys.stdout.write(json.dumps(done))


def save(worker: Side) -> int:
    """Fill slots and hand them over; give how many blocks."""
    assert worker.arena is not None
    granted = worker.wait("credits")["slots"]
    items: list[Any] = []
    for block in range(BLOCKS):
        slot, generation = (
            int.from_bytes(granted[at : at + 4], "little") for at in (block * 8, block * 8 + 4)
        )
        worker.arena.slot(slot).numpy()[:PAGE_BYTES] = list(page(block))
        parent = HASHES[block - 1] if block else bytes(32)
        items.append([slot, generation, 0, HASHES[block], parent, (block + 1) * TOKENS])
    named = {"arena": worker.arena.arena_id, "namespace": NAMESPACE}
    worker.channel.send({"t": "save", **named, "items": items})
    sys.stdin.read()  # until the test has seen them in the vault
    return len(items)


def restore(scheduler: Side, worker: Side) -> int:
    """Ask for the blocks; give how many came back byte for byte."""
    assert worker.arena is not None
    asked = {"group": 0, "class": "kv", "hashes": b"".join(HASHES), "from": 0}
    scheduler.channel.send({"t": "prefetch", "req": "r", "plan": 1, "groups": [asked]})
    scheduler.wait("done")
    slots = [
        int.from_bytes(frame["slots"][at : at + 4], "little")
        for frame in scheduler.heard
        if frame["t"] == "placed"
        for at in range(0, len(frame["slots"]), 4)
    ]
    seen = [worker.arena.slot(slot)[:PAGE_BYTES].numpy().tobytes() for slot in slots]
    return sum(seen[block] == page(block) for block in range(len(seen)))


if __name__ == "__main__":
    main()
