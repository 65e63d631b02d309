"""Copies pages between the engine's KV tensors and arena slots: at once on CPU, on a side stream on CUDA."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.cuda import Cuda
from tierkv.connectors.vllm.pages.pages import Pages, check_block
from tierkv.connectors.vllm.pages.rows import PartRows, Rows

log = logging.getLogger("tierkv.shim")

Done = Callable[[], None]


@dataclass
class Batch:
    """Blocks to copy and what to do when the bytes are in place: (block id, slot number) pairs.

    `seconds`: duration of the copies, known once they are done.
    """

    pages: Pages
    arena: Arena
    pairs: list[tuple[int, int]]
    when_done: list[Done] = field(default_factory=list)
    seconds: float = 0.0


class Copier:
    """Moves batches; `when_done` runs on the engine's thread, from `save`, `load` or `poll`.

    By default a copy is done when its call returns.
    """

    #: Whether batches still run, so that `poll` must be called.
    is_running = False

    def prepare(self, arena: Arena, ready: Done) -> None:
        """Prepare an arena for copies; `ready` is called then, here or on another thread."""
        raise NotImplementedError

    def may_pin(self) -> None:
        """Note that no CUDA graph is being captured from now on."""

    def retire(self, arena: Arena) -> None:
        """Release an arena that no further copy uses, once the running ones have ended."""

    def save(self, batch: Batch) -> None:
        """Copy engine blocks into slots, after the work already queued for this step."""
        raise NotImplementedError

    def load(self, batch: Batch) -> None:
        """Copy slots into engine blocks; no forward uses a block that is being loaded."""
        raise NotImplementedError

    def poll(self) -> None:
        """Run `when_done` of batches that have ended since."""

    def fence(self) -> None:
        """Wait for running copies of states, which the model may overwrite; references protect all other blocks."""

    def settle(self) -> None:
        """Wait for all copies, and report the finished ones."""

    def close(self) -> None:
        """Wait likewise and release all arenas, because their memory may be unmapped next. No copy follows."""


def make_copier(device: torch.device) -> Copier:
    """Choose by where the engine's KV tensors lie. Raises ValueError for a device without a copier."""
    if device.type == "cpu":
        return CpuCopier()
    if device.type == "cuda":
        return CudaCopier(device)
    raise ValueError(
        f"tierKV has no copier for KV tensors on {device.type!r}; it supports cpu and cuda"
    )


class CpuCopier(Copier):
    """Plain copies on the engine's own thread; they are done when the call returns."""

    def prepare(self, arena: Arena, ready: Done) -> None:
        """Allow copies at once; they pay for pages that are not present yet."""
        _start(arena.populate)
        ready()

    def save(self, batch: Batch) -> None:
        self._run(batch, to_slot=True)

    def load(self, batch: Batch) -> None:
        self._run(batch, to_slot=False)

    def _run(self, batch: Batch, *, to_slot: bool) -> None:
        started = time.perf_counter()
        slots = batch.arena.run(0, batch.arena.slot_count)
        batch.pages.copy_all(batch.pairs, slots, to_slot=to_slot)
        batch.seconds = time.perf_counter() - started
        for done in batch.when_done:
            done()


class CudaCopier(Copier):
    """Copies on side streams between the device and the arena, pinned before (cudaHostRegister).

    Many blocks pass through dense buffers on the device: one call for each run of slots, not one for each page. Two
    streams per direction alternate, so that one buffer is gathered or scattered while the other crosses the bus.
    Order: a save waits for the forward queued on the current stream; a load is reported only after its event has
    passed. `bench/gpu` runs it on a GPU; tests run its logic with another `calls` (cuda.py).
    """

    def __init__(self, device: torch.device, calls: Cuda | None = None) -> None:
        self._calls = calls or Cuda(device)
        self._save_streams = (self._calls.stream(), self._calls.stream())
        self._load_streams = (self._calls.stream(), self._calls.stream())
        self._running: list[tuple[Any, Any, Batch]] = []
        #: By arena id: the arena and its pinned pieces. No copy is queued while one is unpinned.
        self._pinned: dict[int, tuple[Arena, list[torch.Tensor]]] = {}
        self._lock = threading.Lock()
        #: Arenas to unpin once their copies have ended.
        self._retired: list[Arena] = []
        self._is_closed = False
        self._capture_ended, self._closing = threading.Event(), threading.Event()

    def prepare(self, arena: Arena, ready: Done) -> None:
        """Pin the arena in the background: that takes seconds, and an unpinned copy would block the engine.

        It waits for `may_pin`, because registering memory while vLLM captures CUDA graphs (global mode) breaks the
        capture. Refused pieces are copied unpinned, and tried again.
        """

        def run() -> None:
            arena.populate()
            self._capture_ended.wait()
            with self._lock:
                if self._is_closed:
                    return
                self._pinned[arena.arena_id] = (arena, [])
            left = self._pin(arena, arena.pieces())
            self._release_retired()  # it may have been replaced meanwhile
            if left:
                log.warning("tierKV: CUDA does not pin arena %d: copies are slow", arena.arena_id)
            if self._closing.is_set():
                return
            ready()
            for _ in range(limits.PIN_TRIES_MAX):
                if not left or self._closing.wait(limits.PIN_RETRY_S):
                    return
                left = self._pin(arena, left)

        _start(run)

    def _pin(self, arena: Arena, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
        """Pin pieces of an arena; gives those that were refused."""
        left: list[torch.Tensor] = []
        for piece in pieces:
            try:
                is_pinned = self._calls.pin(piece)
            except RuntimeError:
                # Saves wait for `ready`, so it is called even if pinning fails.
                log.exception("tierKV: arena %d is not pinned", arena.arena_id)
                is_pinned = False
            if not is_pinned:
                left.append(piece)
                continue
            with self._lock:
                known = self._pinned.get(arena.arena_id)
                if known is None:  # let go of meanwhile
                    self._calls.unpin(piece)
                    return []
                known[1].append(piece)
        return left

    def may_pin(self) -> None:
        self._capture_ended.set()

    def retire(self, arena: Arena) -> None:
        with self._lock:
            self._retired.append(arena)
        self._release_retired()

    def _release_retired(self) -> None:
        """Unpin retired arenas without copies on a thread, because the call takes long for each piece."""
        with self._lock:
            in_use = {batch.arena.arena_id for *_, batch in self._running}
            ended = [
                arena.arena_id
                for arena in self._retired
                if arena.arena_id in self._pinned and arena.arena_id not in in_use
            ]
            pinned = [self._pinned.pop(arena_id) for arena_id in ended]
            self._retired = [of for of in self._retired if of.arena_id not in ended]

        def run() -> None:
            for _arena, pieces in pinned:
                for piece in pieces:
                    self._calls.unpin(piece)

        if pinned:
            _start(run)

    def _unpin(self, arena_id: int) -> None:
        for piece in self._pinned.pop(arena_id)[1]:
            self._calls.unpin(piece)

    def _unpin_all(self) -> None:
        for arena_id in list(self._pinned):
            self._unpin(arena_id)

    def save(self, batch: Batch) -> None:
        self._queue(batch, self._save_streams, to_slot=True)

    def load(self, batch: Batch) -> None:
        self._queue(batch, self._load_streams, to_slot=False)

    def _queue(self, batch: Batch, streams: tuple[Any, Any], *, to_slot: bool) -> None:
        begun, ended = self._calls.event(), self._calls.event()
        stream = streams[0]
        stream.wait_stream(self._calls.current())
        with self._lock:
            begun.record(stream)
            if batch.pages.rows is None:
                with self._calls.on(stream):
                    _copy_each(batch, batch.pairs, to_slot=to_slot)
            else:
                self._copy_rows(batch, batch.pages.rows, streams, to_slot=to_slot)
            ended.record(stream)
            self._running.append((begun, ended, batch))
        self.is_running = True

    def _copy_rows(
        self, batch: Batch, rows: Rows | PartRows, streams: tuple[Any, Any], *, to_slot: bool
    ) -> None:
        pairs = sorted(batch.pairs, key=itemgetter(1))  # by slot
        for block_id, _ in pairs:
            check_block(block_id, batch.pages.num_blocks)
        first, second = streams
        at_once = max(1, limits.ROWS_BYTES_MAX // rows.row_bytes)
        with self._calls.on(first):
            # Both streams read the ids, so the tensor lives until the first stream waits for the second.
            block_ids = self._calls.indices([block_id for block_id, _ in pairs])
        if len(pairs) > at_once:
            second.wait_stream(first)
        for number, start in enumerate(range(0, len(pairs), at_once)):
            part = pairs[start : start + at_once]
            with self._calls.on(streams[number % 2]):
                try:
                    ids = block_ids[start : start + at_once]
                    self._copy_part(batch.arena, rows, part, ids, to_slot=to_slot)
                except torch.OutOfMemoryError:  # the buffer is only an optimisation
                    _copy_each(batch, part, to_slot=to_slot)
        if len(pairs) > at_once:
            first.wait_stream(second)

    def _copy_part(
        self,
        arena: Arena,
        rows: Rows | PartRows,
        pairs: list[tuple[int, int]],
        block_ids: torch.Tensor,
        *,
        to_slot: bool,
    ) -> None:
        slots = [slot for _, slot in pairs]
        if to_slot:
            dense = rows.gather(block_ids)
            for at, count in _runs(slots, arena, rows.row_bytes):
                kept = arena.run(slots[at], count)[:, : rows.row_bytes]
                kept.copy_(dense[at : at + count], non_blocking=True)
        else:
            shape = (len(pairs), rows.row_bytes)
            dense = torch.empty(shape, dtype=torch.uint8, device=block_ids.device)
            for at, count in _runs(slots, arena, rows.row_bytes):
                kept = arena.run(slots[at], count)[:, : rows.row_bytes]
                dense[at : at + count].copy_(kept, non_blocking=True)
            rows.scatter(block_ids, dense)

    def poll(self) -> None:
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
        if self._retired:
            self._release_retired()

    def fence(self) -> None:
        for _, ended, batch in self._running:
            if batch.pages.group.is_state:
                self._calls.current().wait_event(ended)

    def settle(self) -> None:
        self._save_streams[0].synchronize()  # the first stream of each direction ends last
        self._load_streams[0].synchronize()
        self.poll()

    def close(self) -> None:
        """Unpin all arenas, because CUDA refuses memory mapped later at a pinned address."""
        self.settle()
        self._closing.set()
        with self._lock:
            self._is_closed = True
            self._unpin_all()
        self._capture_ended.set()


def _start(work: Done) -> None:
    threading.Thread(target=work, name="tierkv-arena", daemon=True).start()


def _copy_each(batch: Batch, pairs: list[tuple[int, int]], *, to_slot: bool) -> None:
    for block_id, slot in pairs:
        batch.pages.copy(block_id, batch.arena.slot(slot), to_slot=to_slot)


def _runs(slots: list[int], arena: Arena, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Give (index, count) of runs of adjacent slots that were pinned together. `slots`: sorted."""
    first = 0
    for at in range(1, len(slots) + 1):
        is_next = (
            at < len(slots)
            and row_bytes == arena.slot_bytes
            and slots[at] == slots[at - 1] + 1
            and slots[at] % arena.piece_slots
        )
        if not is_next:
            yield first, at - first
            first = at
