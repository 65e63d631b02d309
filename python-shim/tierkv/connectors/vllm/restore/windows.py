"""Owns loads whose blocks come while earlier ones are copied: what is placed goes to the workers, and its slots return.

A load ends early if the sidecar places no more. vLLM keeps what was copied, and computes the rest.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.requests.plan_group import LoadMismatchError, PlanGroup
from tierkv.connectors.vllm.requests.plans import Plan, PlanBook
from tierkv.connectors.vllm.restore.loads import Blocks, Job, LoadQueue


@dataclass(eq=False)
class _Window:
    """One admission under way. Counts of blocks begin at block `first` of the prompt.

    `block_ids`: the engine's, all of them; `taken`: of these, those queued for the workers; `given`: those in a part;
    `loaded`: those that every rank has copied; `told`: those whose slots were returned.
    """

    plan: Plan
    part: PlanGroup
    first: int
    block_ids: Sequence[int]
    job: Job
    begun_at_s: float
    taken: int = 0
    given: int = 0
    loaded: int = 0
    told: int = 0

    def take(self) -> None:
        """Queue the blocks that were placed since."""
        placed = min(self.part.end - self.first, len(self.block_ids))
        count = placed - self.taken
        if count > 0:
            ids = list(self.block_ids[self.taken : placed])
            slots = self.part.slots_of(self.first + self.taken, count)
            self.job.blocks.append(Blocks(self.part.group.index, ids, slots))
            self.taken = placed

    def close(self) -> None:
        """End the load with what was taken."""
        self.job.lost = list(self.block_ids[self.taken :])
        self.job.is_open = False

    def fail(self) -> None:
        """End the load as failed, whatever was copied."""
        self.job.blocks.clear()
        self.job.has_failed, self.job.is_open = True, False


class Windows:
    """All such loads of one engine. Runs on the engine's thread; `world`: ranks that acknowledge each part."""

    def __init__(
        self,
        loads: LoadQueue,
        book: PlanBook,
        world: int,
        stall_s: Callable[[], float],
        counters: Counters,
    ) -> None:
        self._loads = loads
        self._book = book
        self._world = world
        self._stall_s = stall_s
        self._counters = counters
        #: Loads that were not reported yet, by request; the ones that ended are kept until then.
        self.by_id: dict[str, _Window] = {}
        #: Parts that some rank has not acknowledged, by number: the load, its blocks up to the part's end, and ranks.
        self._parts: dict[int, tuple[_Window, int, int]] = {}
        self._number = 0
        #: When loads were last looked at, and since when this has happened in time.
        self._looked_at_s = self._awake_since_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Tell whether a load waits for blocks and has none to copy."""
        return any(not window.job.has_news for window in self.by_id.values())

    def begin(self, req_id: str, plan: Plan, start: int, tokens: int, table: Sequence[int]) -> None:
        """Queue an admission of `tokens` tokens after the first `start`, some of which are still coming.

        `table`: the request's block ids. Raises LoadMismatchError where vLLM allocated fewer.
        """
        (part,) = plan.groups.values()
        size = part.group.block_tokens
        first, count = start // size, tokens // size
        block_ids = list(table[first : first + count])
        if len(block_ids) < count or 0 in block_ids:
            raise LoadMismatchError(
                f"group {part.group.index} has {len(table)} blocks of {first + count}"
            )
        job = self._loads.open(req_id, plan, part.group.index, count)
        window = _Window(plan, part, first, block_ids, job, time.monotonic())
        job.number = lambda blocks: self._numbered(window, blocks)
        self.by_id[req_id] = window
        self._book.ask(plan)
        self._counters.add("loads_windowed")

    def _numbered(self, window: _Window, count: int) -> int:
        window.given += count
        self._number += 1
        self._parts[self._number] = (window, window.given, self._world)
        return self._number

    def next_step(self) -> None:
        """Queue what was placed since the last step, and end loads for which nothing more will come."""
        now, stall_s = time.monotonic(), self._stall_s()
        if now - self._looked_at_s > stall_s / 2:
            self._awake_since_s = now  # a long step: frames may wait to be read
        self._looked_at_s = now
        for window in self.by_id.values():
            if window.job.is_open:
                self._look(window, now - stall_s)

    def _look(self, window: _Window, stalled_at_s: float) -> None:
        plan = window.plan
        reason = plan.done_reason  # first: the helper thread places blocks before it says so
        heard_at_s = max(plan.progress_at_s, window.begun_at_s, self._awake_since_s)
        window.take()
        if window.taken == len(window.block_ids):
            window.close()
        elif reason is not None or heard_at_s < stalled_at_s:
            plan.done_reason = reason or "stalled"
            window.close()
            self._counters.add(f"loads_ended_{plan.done_reason}")

    def hear(self, copied: Mapping[int, int]) -> None:
        """Take the ranks' acknowledgements, by number of a part; slots return once all ranks are done with a part."""
        for number, ranks in copied.items():
            known = self._parts.get(number)
            if known is None:
                continue
            window, end, left = known
            if left > ranks:
                self._parts[number] = (window, end, left - ranks)
                continue
            del self._parts[number]
            window.loaded = max(window.loaded, end)
        for window in self.by_id.values() if copied else ():
            self._tell(window)

    def _tell(self, window: _Window) -> None:
        """Return the slots of the blocks that all ranks have copied; the frame repeats what an unsent one said."""
        size = window.part.group.block_tokens
        tokens = (window.first + window.loaded) * size
        if window.loaded > window.told and self._book.tell_loaded(window.plan, tokens):
            window.told = window.loaded

    def abort(self, req_id: str) -> None:
        """End the load of a request that has ended: nothing more is copied for it."""
        window = self.by_id.get(req_id)
        if window is not None and window.job.is_open:
            window.job.blocks.clear()
            window.job.is_open = False

    def fail_all(self) -> None:
        """End all loads as failed, because the weights have changed."""
        for window in self.by_id.values():
            window.fail()

    def finish(self, req_id: str) -> int | None:
        """Forget a load that all ranks have reported; gives the tokens it copied, None where it was no such load."""
        window = self.by_id.pop(req_id, None)
        if window is None:
            return None
        self._parts = {n: known for n, known in self._parts.items() if known[0] is not window}
        return window.given * window.part.group.block_tokens
