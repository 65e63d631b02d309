"""Copies pages between the engine's KV tensors and arena slots: at once on CPU, on a side stream on CUDA."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.arena import Arena
from tierkv.connectors.vllm.cuda import Calls, Cuda, Event
from tierkv.connectors.vllm.pages import Pages
from tierkv.connectors.vllm.timing import StepClock

log = logging.getLogger("tierkv.shim")

Done = Callable[[], None]


@dataclass
class Batch:
    """Blocks to copy and what to do when the bytes are in place: (block id, slot number) pairs.

    `seconds`: what the copies took, known when they are done.
    """

    pages: Pages
    arena: Arena
    pairs: list[tuple[int, int]]
    when_done: list[Done] = field(default_factory=list)
    seconds: float = 0.0


class Copier(Protocol):
    """Moves batches; `when_done` runs on the engine's thread, from `save`, `load` or `poll`."""

    #: Batches have not ended: `poll` is to be called.
    is_running: bool

    def save(self, batch: Batch) -> None:
        """Copy engine blocks into slots, after the work already queued for this step."""

    def load(self, batch: Batch) -> None:
        """Copy slots into engine blocks."""

    def poll(self) -> None:
        """Run `when_done` of batches that have ended since."""

    def fence(self) -> None:
        """Wait for running copies out of blocks that the engine is about to overwrite."""

    def settle(self) -> None:
        """Wait until no copy runs any more, whatever it costs; finished ones are reported."""


def make_copier(device: torch.device, clock: StepClock) -> Copier:
    """Choose by where the engine's KV tensors lie. Raises ValueError for a device without a copier."""
    if device.type == "cpu":
        return CpuCopier(clock)
    if device.type == "cuda":
        return CudaCopier(device)
    raise ValueError(
        f"tierKV has no copier for KV tensors on {device.type!r}; it supports cpu and cuda"
    )


class CpuCopier:
    """Plain copies on the engine's own thread; they are done when the call returns."""

    is_running = False

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def save(self, batch: Batch) -> None:
        """Copy now."""
        self._run(batch, to_slot=True)

    def load(self, batch: Batch) -> None:
        """Copy now."""
        self._run(batch, to_slot=False)

    def _run(self, batch: Batch, *, to_slot: bool) -> None:
        started = time.perf_counter()
        for block_id, slot in batch.pairs:
            batch.pages.copy(block_id, batch.arena.slot(slot), to_slot=to_slot)
        batch.seconds = time.perf_counter() - started
        self._clock.copied(batch.seconds, len(batch.pairs) * batch.pages.group.block_bytes)
        for done in batch.when_done:
            done()

    def poll(self) -> None:
        """Nothing runs behind our back."""

    def fence(self) -> None:
        """Nothing runs behind our back."""

    def settle(self) -> None:
        """Nothing runs behind our back."""


class CudaCopier:
    """Copies on side streams between the device and the arena, pinned once (cudaHostRegister).

    Order: a save waits for the forward queued on the current stream; a load is reported only after its event has
    passed. `bench/gpu` runs it on a GPU; tests run its logic with another `calls` (cuda.py).
    """

    def __init__(self, device: torch.device, calls: Calls | None = None) -> None:
        self._calls = calls if calls is not None else Cuda(device)
        self._save_stream = self._calls.stream()
        self._load_stream = self._calls.stream()
        self._running: list[tuple[Event, Event, Batch]] = []
        #: By arena: it, and whether the device took it.
        self._pinned: dict[int, tuple[Arena, bool]] = {}
        self.is_running = False

    def _pin(self, arena: Arena) -> None:
        if arena.arena_id in self._pinned:
            return
        # Copies of memory that the device refused are still right, only slower.
        is_taken = self._calls.pin(arena.bytes)
        if not is_taken:
            log.warning("tierKV: CUDA does not pin arena %d: its copies are slow", arena.arena_id)
        self._pinned[arena.arena_id] = (arena, is_taken)
        self._unpin_old({arena.arena_id, *(batch.arena.arena_id for *_, batch in self._running)})

    def _unpin_old(self, in_use: set[int]) -> None:
        """Let go of arenas that the table has let go of, and no copy uses."""
        old = [arena_id for arena_id in self._pinned if arena_id not in in_use]
        for arena_id in old[: max(0, len(self._pinned) - limits.ARENAS_MAX)]:
            arena, is_taken = self._pinned.pop(arena_id)
            if is_taken:
                self._calls.unpin(arena.bytes)

    def save(self, batch: Batch) -> None:
        """Queue device-to-host copies behind this step's forward."""
        self._save_stream.wait_stream(self._calls.current())
        self._queue(batch, self._save_stream, to_slot=True)

    def load(self, batch: Batch) -> None:
        """Queue host-to-device copies; blocks under load are not used by any forward."""
        self._load_stream.wait_stream(self._calls.current())
        self._queue(batch, self._load_stream, to_slot=False)

    def _queue(self, batch: Batch, stream: Any, *, to_slot: bool) -> None:
        self._pin(batch.arena)
        begun, ended = self._calls.event(), self._calls.event()
        with self._calls.on(stream):
            begun.record(stream)
            for block_id, slot in batch.pairs:
                batch.pages.copy(block_id, batch.arena.slot(slot), to_slot=to_slot)
            ended.record(stream)
        self._running.append((begun, ended, batch))
        self.is_running = True

    def poll(self) -> None:
        """Finish batches whose event has passed, in any order."""
        still_running = []
        for begun, ended, batch in self._running:
            if ended.query():
                batch.seconds = begun.elapsed_time(ended) / 1000
                for done in batch.when_done:
                    done()
            else:
                still_running.append((begun, ended, batch))
        self._running = still_running
        self.is_running = bool(still_running)

    def fence(self) -> None:
        """Let the engine's stream wait for running saves: their source blocks may be overwritten next."""
        self._calls.current().wait_stream(self._save_stream)

    def settle(self) -> None:
        """Wait for both streams."""
        self._save_stream.synchronize()
        self._load_stream.synchronize()
        self.poll()
