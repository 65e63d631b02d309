"""Admitted loads: turns a plan vLLM gave blocks for into parts of bounded size, one or more steps long."""

from collections import deque
from dataclasses import dataclass

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.metadata import LoadPart
from tierkv.connectors.vllm.plans import Plan


@dataclass
class _Job:
    plan: Plan
    block_ids: list[int]
    slots: list[int]
    sent: int = 0


class LoadQueue:
    """Each `add` is one admission and is reported exactly once by every rank, also after an abort.

    A request id may be admitted again after a preemption, but never while its earlier load runs: vLLM keeps a loading
    request out of the queue until we report it.
    """

    def __init__(self, block_bytes: int) -> None:
        self._blocks_per_step = max(1, limits.LOAD_BYTES_PER_STEP_MAX // block_bytes)
        self._queue: deque[_Job] = deque()
        self._running: dict[str, Plan] = {}

    def add(self, plan: Plan, block_ids: list[int], slots: list[int]) -> None:
        """Queue an admission: `slots` holds `plan.world` slots for each of `block_ids`."""
        if len(slots) != len(block_ids) * plan.world:
            raise ValueError(
                f"request {plan.req_id}: {len(block_ids)} blocks but {len(slots)} slots"
            )
        self._queue.append(_Job(plan, block_ids, slots))
        self._running[plan.req_id] = plan

    def next_parts(self) -> list[LoadPart]:
        """Give this step's share, oldest admission first."""
        parts: list[LoadPart] = []
        room = self._blocks_per_step
        while self._queue and room > 0:
            job = self._queue[0]
            end = min(len(job.block_ids), job.sent + room)
            world = job.plan.world
            last = end == len(job.block_ids)
            parts.append(
                LoadPart(
                    req_id=job.plan.req_id,
                    arena=job.plan.arena,
                    group=job.plan.group,
                    block_ids=job.block_ids[job.sent : end],
                    slots=job.slots[job.sent * world : end * world],
                    last=last,
                )
            )
            room -= end - job.sent
            job.sent = end
            if last:
                self._queue.popleft()
        return parts

    def finish(self, req_id: str) -> Plan | None:
        """Hear that all ranks reported a request; gives its plan, whose slots may return."""
        return self._running.pop(req_id, None)

    def is_loading(self, req_id: str) -> bool:
        """Tell whether an admission of this request has not been reported yet."""
        return req_id in self._running

    def __len__(self) -> int:
        return len(self._running)
