"""Splits admitted loads, whose plans vLLM gave blocks for, into parts of bounded size over one or more steps."""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import LoadPart
from tierkv.connectors.vllm.requests.plans import Plan

#: Arena of a load that must fail: no worker has it mapped, so each reports the request as failed.
NO_ARENA = -1


@dataclass
class Blocks:
    """Blocks of one group; `slots` holds `shards` for each of `block_ids`."""

    group: int
    block_ids: list[int]
    slots: list[int]


@dataclass
class Job:
    """An admission whose parts were not all given; more blocks are added while it `is_open` (windows.py)."""

    req_id: str
    shards: int
    arena: int
    blocks: deque[Blocks]
    #: Bytes loaded before it came plus its own bytes: the queue's order, by which a short load passes longer ones.
    turn: int
    is_open: bool = False
    #: The end of an open job: the block ids that will not come, and whether the whole admission has failed.
    lost: list[int] = field(default_factory=list)
    has_failed: bool = False
    #: Numbers its parts, called with how many blocks a part has; None: they need no acknowledgement.
    number: Callable[[int], int] | None = None

    @property
    def has_news(self) -> bool:
        """Tell whether there is a part to give."""
        return bool(self.blocks) or not self.is_open


@dataclass
class _Load:
    """An admission that was not reported yet: its plan if it has one, its bytes, and when it was queued."""

    plan: Plan | None
    size: int
    queued_at_s: float
    #: Whether its blocks come as it runs, so that its time says nothing about copies.
    is_open: bool = False


class LoadQueue:
    """Each `add` is one admission and is reported exactly once by every rank, also after an abort.

    A request id may be admitted again after a preemption, but never while its earlier load runs: vLLM keeps a loading
    request out of the queue until we report it. `block_bytes`: of one block, by group.
    """

    def __init__(self, block_bytes: Mapping[int, int]) -> None:
        self._block_bytes = dict(block_bytes)
        #: Admissions that `next_parts` has yet to give, in order.
        self.queue: list[Job] = []
        self._loaded_bytes = 0
        self._running: dict[str, _Load] = {}
        #: Bytes of all running loads, and bytes a second of past ones.
        self._running_bytes = 0
        self._rate = limits.LOAD_RATE_FIRST
        #: Parts of the step being planned, which the workers do not have yet.
        self._given: list[LoadPart] = []

    def add(self, req_id: str, plan: Plan, blocks: list[tuple[int, list[int], list[int]]]) -> None:
        """Queue an admission: (group, block ids, slots), with `plan.shards` slots for each block.

        Several requests may load the blocks of one plan. One without any block, where vLLM needs none of those before
        the boundary, is reported like every other.
        """
        jobs = deque([Blocks(*entry) for entry in blocks if entry[1]] or [Blocks(*blocks[0])])
        size = sum(len(of.block_ids) * self._block_bytes[of.group] for of in jobs)
        self._queue(Job(req_id, plan.shards, plan.arena, jobs, self._loaded_bytes + size))
        self._run(req_id, plan, size)

    def open(self, req_id: str, plan: Plan, group: int, count: int) -> Job:
        """Queue an admission of `count` blocks of one group that are still coming."""
        turn = self._loaded_bytes + count * self._block_bytes[group]
        job = Job(req_id, plan.shards, plan.arena, deque(), turn, is_open=True)
        self._queue(job)
        self._running[req_id] = _Load(plan, 0, time.monotonic(), is_open=True)
        return job

    def add_failed(
        self, req_id: str, group: int, block_ids: list[int], plan: Plan | None = None
    ) -> None:
        """Queue an admission that cannot be filled; it is reported as failed."""
        self._queue(Job(req_id, 0, NO_ARENA, deque([Blocks(group, block_ids, [])]), 0))
        self._run(req_id, plan, 0)

    def _run(self, req_id: str, plan: Plan | None, size: int) -> None:
        self._running[req_id] = _Load(plan, size, time.monotonic())
        self._running_bytes += size

    def expected_s(self) -> float:
        """Predict the seconds until every load queued so far is done, by the rate of past ones."""
        return self._running_bytes / self._rate

    def reads_beside(self, arena: int) -> bool:
        """Tell whether the workers do not have every part yet of a load from another arena than `arena`."""
        given = (part.arena for part in self._given)
        queued = (job.arena for job in self.queue)
        return any(each not in (arena, NO_ARENA) for each in chain(given, queued))

    def _queue(self, job: Job) -> None:
        insort(self.queue, job, key=lambda other: other.turn)

    def next_parts(self, computed_bytes: int = 0) -> list[LoadPart]:
        """Give this step's share, by admission in order; at least one block. `commit` follows.

        A step may load as much as it computes (`computed_bytes`), so that loads do not fall behind long steps.
        """
        parts: list[LoadPart] = []
        self._given = parts
        room = max(limits.LOAD_BYTES_PER_STEP_MAX, computed_bytes)
        waiting: list[Job] = []
        while self.queue:
            job = self.queue[0]
            if not job.blocks:
                self.queue.pop(0)
                if job.is_open:
                    waiting.append(job)
                else:
                    parts.append(_end_of(job))
                continue
            blocks = job.blocks[0]
            block_bytes = self._block_bytes[blocks.group]
            count = min(len(blocks.block_ids), room // block_bytes)
            if count <= 0 and parts:
                break
            count = min(max(count, 1), len(blocks.block_ids))
            room -= count * block_bytes
            self._loaded_bytes += count * block_bytes
            is_end = count == len(blocks.block_ids) and len(job.blocks) == 1
            is_last = is_end and not job.is_open and not job.lost
            parts.append(self._cut(job, blocks, count, is_last=is_last))
            if not blocks.block_ids:
                job.blocks.popleft()
            if is_last:
                self.queue.pop(0)
        self.queue[:0] = waiting
        return parts

    def commit(self) -> None:
        """Note that the workers get the parts of this step."""
        self._given = []

    def fail_rest(self) -> list[LoadPart]:
        """Give everything the workers do not have yet as parts that fail."""
        failed = [part._replace(arena=NO_ARENA, slots=[]) for part in self._given]
        for job in self.queue:
            is_streamed = job.number is not None
            if is_streamed:
                failed.append(_end_of(job)._replace(is_cut=False))
            for blocks in () if is_streamed else job.blocks:
                is_last = blocks is job.blocks[-1]
                of = blocks.group, blocks.block_ids
                failed.append(LoadPart(job.req_id, NO_ARENA, *of, [], last=is_last))
        self._given = []
        self.queue.clear()
        return failed

    @staticmethod
    def _cut(job: Job, blocks: Blocks, count: int, *, is_last: bool) -> LoadPart:
        shards = job.shards
        part = LoadPart(
            req_id=job.req_id,
            arena=job.arena,
            group=blocks.group,
            block_ids=blocks.block_ids[:count],
            slots=blocks.slots[: count * shards],
            last=is_last,
            number=0 if job.number is None else job.number(count),
        )
        del blocks.block_ids[:count]
        del blocks.slots[: count * shards]
        return part

    def took(self, loads: Mapping[str, int]) -> None:
        """Add the copies' microseconds to the admissions' plans."""
        for req_id, spent_us in loads.items():
            load = self._running.get(req_id)
            if load is not None and load.plan is not None:
                load.plan.load_us += spent_us

    def finish(self, req_id: str) -> Plan | None:
        """End an admission that all ranks reported; gives its plan, whose slots may return."""
        load = self._running.pop(req_id, None)
        if load is None:
            return None
        if load.size and not load.is_open:
            took_s = max(1e-4, time.monotonic() - load.queued_at_s)
            self._rate += limits.LOAD_RATE_SHARE * (load.size / took_s - self._rate)
        self._running_bytes -= load.size
        return load.plan

    def is_loading(self, req_id: str) -> bool:
        return req_id in self._running

    def __len__(self) -> int:
        return len(self._running)


def _end_of(job: Job) -> LoadPart:
    """Give the last part of an open job: the blocks that will not come, or all of it as failed."""
    return LoadPart(job.req_id, NO_ARENA, 0, job.lost, [], last=True, is_cut=not job.has_failed)
