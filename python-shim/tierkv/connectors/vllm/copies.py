"""Copies pages between the engine's KV tensors and arena slots: at once on CPU, on a side stream on CUDA."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tierkv.connectors.vllm.arena import Arena
from tierkv.connectors.vllm.pages import Pages
from tierkv.connectors.vllm.timing import StepClock

Done = Callable[[], None]


@dataclass
class Batch:
    """Blocks to copy and what to do when the bytes are in place: (block id, slot number) pairs."""

    pages: Pages
    arena: Arena
    pairs: list[tuple[int, int]]
    when_done: list[Done] = field(default_factory=list)


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
        self._clock.copied(
            time.perf_counter() - started, len(batch.pairs) * batch.pages.group.block_bytes
        )
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

    Written from vLLM's and PyTorch's sources, not run: no machine of ours had a GPU. Order: a save waits for the
    forward queued on the current stream; a load is reported only after its event has passed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._save_stream = torch.cuda.Stream(device)
        self._load_stream = torch.cuda.Stream(device)
        self._running: list[tuple[Any, bool, Batch]] = []
        self._pinned: dict[int, Arena] = {}
        self.is_running = False

    def _pin(self, arena: Arena) -> None:
        if arena.arena_id not in self._pinned:
            # Pageable copies would still be right, only slower, so a refusal is no error.
            torch.cuda.cudart().cudaHostRegister(arena.bytes.data_ptr(), arena.bytes.numel(), 0)
            self._pinned[arena.arena_id] = arena

    def save(self, batch: Batch) -> None:
        """Queue device-to-host copies behind this step's forward."""
        self._save_stream.wait_stream(torch.cuda.current_stream(self._device))
        self._queue(batch, self._save_stream, to_slot=True)

    def load(self, batch: Batch) -> None:
        """Queue host-to-device copies; blocks under load are not used by any forward."""
        self._load_stream.wait_stream(torch.cuda.current_stream(self._device))
        self._queue(batch, self._load_stream, to_slot=False)

    def _queue(self, batch: Batch, stream: Any, *, to_slot: bool) -> None:
        self._pin(batch.arena)
        event = torch.cuda.Event()
        with torch.cuda.stream(stream):
            for block_id, slot in batch.pairs:
                batch.pages.copy(block_id, batch.arena.slot(slot), to_slot=to_slot)
            event.record(stream)
        self._running.append((event, to_slot, batch))
        self.is_running = True

    def poll(self) -> None:
        """Finish batches whose event has passed, in any order."""
        still_running = []
        for event, is_save, batch in self._running:
            if event.query():
                for done in batch.when_done:
                    done()
            else:
                still_running.append((event, is_save, batch))
        self._running = still_running
        self.is_running = bool(still_running)

    def fence(self) -> None:
        """Let the engine's stream wait for running saves: their source blocks may be overwritten next."""
        torch.cuda.current_stream(self._device).wait_stream(self._save_stream)

    def settle(self) -> None:
        """Wait for both streams."""
        self._save_stream.synchronize()
        self._load_stream.synchronize()
        self.poll()
