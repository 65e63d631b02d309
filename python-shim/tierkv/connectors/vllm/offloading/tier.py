"""`TierKVTier`, a secondary tier of vLLM's own offloading (experimental): chunks go to the sidecar, and come back."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    LookupResult,
    RequestOffloadingContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.guard import Failures, guarded
from tierkv.connectors.vllm.link.job_thread import JobThread
from tierkv.connectors.vllm.link.link import Asked, Link, Plan, Save
from tierkv.connectors.vllm.link.settings import load_settings
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.offloading.compat import chunk_ids, job_result
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.requests import is_cacheable

log = logging.getLogger("tierkv.shim")


@dataclass
class _Reader:
    """One request: its chunks' places in the prompt, and its plan.

    `is_over`: nothing more is restored for it. `loading`: jobs that read the plan's slots. `late_s`: when it stops
    waiting for the workers.
    """

    request: Any
    grid: Grid
    plan: Plan | None = None
    is_over: bool = False
    loading: int = 0
    late_s: float = 0.0
    _places: dict[bytes, int] = field(default_factory=dict)

    def place(self, key: bytes) -> int | None:
        """Give the index of a chunk in the prompt; None for any other key."""
        (chunk,) = self.grid.groups
        block_hash = get_offload_block_hash(key)
        if get_offload_group_idx(key) != chunk.index:
            return None
        if block_hash not in self._places:
            hashes = self.grid.hashes(self.request, chunk, self.grid.hashed(self.request))
            for index in range(len(self._places), len(hashes)):
                self._places[bytes(hashes[index])] = index
        return self._places.get(block_hash)

    def save(self, index: int) -> tuple[int, bytes, bytes, int, bytes]:
        """Give a `Save`'s fields of a chunk, without its slot."""
        (chunk,) = self.grid.groups
        block_hash, parent, anchor = self.grid.names(self.request, chunk, index)
        return chunk.index, block_hash, parent, (index + 1) * chunk.block_tokens, anchor


def _missed(self: "TierKVTier", key: bytes, req_context: Any) -> LookupResult:
    del self, key, req_context
    return LookupResult.MISS


def _failed(self: "TierKVTier", job_metadata: Any) -> None:
    self.results.append((None, job_result(job_metadata, (), 0.0, 0)))


class TierKVTier(SecondaryTierManager):
    """Needs `TierKVOffloadingConnector`, which reports the workers' configuration; behind another it does nothing.

    Methods run on the scheduler's thread. `config_path`, `socket` and `autostart` may stand beside `type` and
    `module_path`. One chunk of the primary tier, with the shares of all ranks, is one record.
    """

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        # 0.28 has no such argument.
        more = {"backpressure_detector": backpressure_detector} if backpressure_detector else {}
        super().__init__(offloading_spec, primary_kv_view, tier_type, **more)
        self.settings = load_settings(options)
        self.spec = offloading_spec
        self.counters = Counters()
        self.failures = Failures(self.counters)
        self.half = self  # as `guarded` wants it
        #: Finished jobs, each with the request whose plan a load read, or None.
        self.results: deque[tuple[_Reader | None, Any]] = deque()
        self.chunk_bytes = int(offloading_spec.kv_bytes_per_chunk)
        rows = torch.frombuffer(primary_kv_view, dtype=torch.int8)
        self._rows: torch.Tensor | None = rows.view(-1, self.chunk_bytes)
        self._readers: dict[str, _Reader] = {}
        self._is_paused = False
        self._link: Link | None = None
        self._loads, self._stores = JobThread("tierkv-tier-load"), JobThread("tierkv-tier-store")

    def begin(
        self, register: Frame, naming: Naming, grid: Grid, engine: str, software: str
    ) -> None:
        """Connect; `grid` has one group, whose blocks are chunks."""
        self._grid = grid
        self._naming = naming
        self._link = Link(
            self.settings,
            software,
            register,
            engine=engine,
            counters=self.counters,
            name=self._name,
            identity=naming.identity,
            reports=naming.report,
            opened=naming.open,
            decided=naming.hear,
        )
        self._link.start()

    def _name(self, _fidelity: int) -> tuple[bytes, dict[str, str]]:
        ours = None if self.failures.is_off else self._naming.make()
        return (b"", {}) if ours is None else (ours.digest, ours.parts)

    # --- what the connector tells -----------------------------------------------------------------

    @guarded()
    def hear_request(self, request: Any) -> None:
        """Take a request before vLLM's look-ups, unless hashes do not name it completely."""
        if self._link is None or len(self._readers) >= limits.REQUESTS_MAX:
            return
        if is_cacheable(request):
            self._readers[request.request_id] = _Reader(request, self._grid)

    def pause(self, *, is_paused: bool) -> None:
        """Restore and save nothing until the workers confirm that their weights are the named ones."""
        self._is_paused = is_paused

    @guarded()
    def forget(self) -> None:
        """End every plan, because its blocks may be of other weights."""
        for reader in self._readers.values():
            self._end(reader)
            reader.is_over = False

    def turn_off(self, why: str) -> None:
        """Restore and save nothing any more; never raises."""
        if self.failures.turn_off(why):
            for reader in self._readers.values():
                self.failures.attempt("turn_off", partial(self._end, reader))

    # --- what vLLM asks ---------------------------------------------------------------------------

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        del req_context
        return RequestOffloadingContext()

    @guarded(_missed)
    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        """Request chunks from the first that vLLM lacks, and give whether this one has arrived."""
        reader = self._readers.get(req_context.req_id)
        at = None if reader is None or reader.is_over else reader.place(key)
        if reader is None or at is None:
            return LookupResult.MISS
        if reader.plan is None and not self._ask(reader, at):
            return LookupResult.RETRY if self._awaits_name(reader) else LookupResult.MISS
        plan = reader.plan
        assert plan is not None
        if not plan.reason:
            if time.monotonic() < plan.late_s:
                return LookupResult.RETRY
            self.counters.add("misses_no_answer")
            self._end(reader)
        is_placed = at in plan.slots.get(get_offload_group_idx(key), {})
        return LookupResult.HIT if is_placed else LookupResult.MISS

    @property
    def _is_unsure(self) -> bool:
        """Tell whether workers or the sidecar have yet to decide what the blocks are called; both answer at once."""
        return self._is_paused or self._naming.awaits_fidelity

    def _awaits_name(self, reader: _Reader) -> bool:
        now = time.monotonic()
        reader.late_s = reader.late_s or now + limits.WAIT_MS_DEFAULT / 1000
        reader.is_over = not self._is_unsure or now >= reader.late_s
        return not reader.is_over

    def _ask(self, reader: _Reader, at: int) -> bool:
        (chunk,) = self._grid.groups
        hashes = self._grid.hashes(reader.request, chunk, self._grid.limit(reader.request))
        # 0.28 also looks up requests that want their whole prompt computed.
        is_wanted = at < len(hashes) and not reader.request.skip_reading_prefix_cache
        if self._link is None or self._is_unsure or not is_wanted:
            return False
        asked = Asked(chunk.index, chunk.record_class, [bytes(found) for found in hashes])
        reader.plan = self._link.begin([asked], at, reader.request.request_id)
        return reader.plan is not None

    @guarded(_failed)
    def submit_load(self, job_metadata: Any) -> None:
        """Copy chunks that have arrived into vLLM's rows."""
        reader = self._readers[job_metadata.req_context.req_id]
        plan, places = reader.plan, [reader.place(key) for key in job_metadata.keys]
        assert plan is not None
        reader.loading += 1
        self._loads.add(lambda given_up: self._load(job_metadata, reader, plan, places, given_up))

    @guarded(_failed)
    def submit_store(self, job_metadata: Any) -> None:
        """Copy vLLM's rows into slots and hand them over; chunks without a slot are dropped."""
        reader = self._readers.get(job_metadata.req_context.req_id)
        name = b"" if self._link is None or self._is_paused else self._link.name()
        places = [None if reader is None else reader.place(key) for key in job_metadata.keys]
        if (
            not name
            or reader is None
            or None in places
            or len(self._stores) >= limits.TIER_STORES_MAX
        ):
            self.counters.add("dropped_save_not_ready", len(places))
            self.results.append((None, job_result(job_metadata, (), 0.0, 0)))
            return
        told = [reader.save(at) for at in places if at is not None]
        self._stores.add(lambda given_up: self._store(job_metadata, name, told, given_up))

    def get_finished_jobs(self) -> Iterable[Any]:
        """Give the jobs that ended; a plan that was read is released."""
        finished = []
        while self.results:
            reader, result = self.results.popleft()
            finished.append(result)
            if reader is not None:
                reader.loading -= 1
                if reader.loading == 0:
                    chunks = len(result.successful_keys or ())
                    (chunk,) = self._grid.groups
                    self._end(reader, chunks * chunk.block_tokens, result.transfer_time)
        return finished

    def has_pending_work(self) -> bool:
        """Keep an engine without requests stepping until its jobs are reported."""
        return bool(self.results) or self._loads.is_busy or self._stores.is_busy

    @guarded()
    def on_schedule_end(self, context: Any) -> None:
        """Release plans of running requests; preempted ones may look up again."""
        for req_id in context.new_req_ids:
            reader = self._readers.get(req_id)
            if reader is not None and reader.loading == 0:
                self._end(reader)
        for req_id in context.preempted_req_ids:
            reader = self._readers.get(req_id)
            if reader is not None and reader.loading == 0:
                reader.is_over = False

    @guarded()
    def on_request_finished(self, req_context: Any) -> None:
        """Forget a request; a load that runs ends its plan."""
        reader = self._readers.pop(req_context.req_id, None)
        if reader is not None and reader.loading == 0:
            self._end(reader)

    def drain_jobs(self) -> None:
        """Wait until no job touches vLLM's rows."""
        self._loads.drain()
        self._stores.drain()

    def shutdown(self) -> None:
        """End threads and connections, and drop vLLM's memory."""
        self._loads.close()
        self._stores.close()
        if self._link is not None:
            self._naming.close()
            self._link.close()
        self._rows = None

    # --- the two threads --------------------------------------------------------------------------

    def _load(
        self,
        job: Any,
        reader: _Reader,
        plan: Plan,
        places: Sequence[int | None],
        is_given_up: bool,
    ) -> None:
        started = time.monotonic()
        done: list[bytes] = []
        try:
            for key, row, at in zip(job.keys, chunk_ids(job), places, strict=True):
                if not is_given_up and at is not None and self._read(plan, key, at, row):
                    done.append(key)
            # Slots of a plan released meanwhile may have been refilled while they were read.
            if not plan.slots:
                done = []
        except Exception as error:  # noqa: BLE001 - the job must be reported
            self.failures.note("tier_load", error)
            done = []
        self.counters.add("blocks_loaded", len(done))
        self._report(job, reader, done, started)

    def _read(self, plan: Plan, key: bytes, at: int, row: int) -> bool:
        assert self._link is not None
        assert self._rows is not None
        views = self._link.read(plan, get_offload_group_idx(key), range(at, at + 1))
        if views is None:
            return False
        self._rows[row].copy_(torch.frombuffer(views[0], dtype=torch.int8)[: self.chunk_bytes])
        return True

    def _store(
        self,
        job: Any,
        name: bytes,
        told: Sequence[tuple[int, bytes, bytes, int, bytes]],
        is_given_up: bool,
    ) -> None:
        started = time.monotonic()
        done: list[bytes] = []
        try:
            for key, row, named in zip(job.keys, chunk_ids(job), told, strict=True):
                if is_given_up or self.failures.is_off or not self._write(name, row, named):
                    self.counters.add("dropped_save_no_slot", len(told) - len(done))
                    break
                done.append(key)
        except Exception as error:  # noqa: BLE001 - the job must be reported
            self.failures.note("tier_store", error)
        self._report(job, None, done, started)

    def _write(self, name: bytes, row: int, named: tuple[int, bytes, bytes, int, bytes]) -> bool:
        assert self._link is not None
        assert self._rows is not None
        slot = self._link.take(limits.MLX_SLOT_WAIT_S)
        if slot is None:
            return False
        torch.frombuffer(slot.view, dtype=torch.int8)[: self.chunk_bytes].copy_(self._rows[row])
        self._link.save(name, [Save(slot, *named)])
        self.counters.add("bytes_offered", self.chunk_bytes)
        return True

    def _report(self, job: Any, reader: _Reader | None, done: list[bytes], started: float) -> None:
        seconds = time.monotonic() - started
        self.results.append((reader, job_result(job, done, seconds, len(done) * self.chunk_bytes)))

    def _end(self, reader: _Reader, tokens: int = 0, seconds: float = 0.0) -> None:
        plan, reader.plan, reader.is_over = reader.plan, None, True
        if plan is not None and self._link is not None:
            self._link.release(plan, tokens, seconds)
