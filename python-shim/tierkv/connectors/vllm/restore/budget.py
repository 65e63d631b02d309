"""Owns the time vLLM waits for a plan: from when it could start the request, at most the restore budget."""

from collections.abc import Callable
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.plans import Plan, PlanBook
from tierkv.connectors.vllm.requests.requests import RequestState, Waiting


class StepRoom:
    """Free KV blocks and tokens of one step, less the share of the requests queried so far.

    vLLM queries waiting requests until one finds no blocks. A request told to wait takes none, so vLLM also queries
    requests that it could not have started beside it.
    """

    def __init__(self, grid: Grid, step_tokens: int) -> None:
        self._grid = grid
        self._step_tokens = step_tokens
        self._pool: Any = None
        self._is_fresh = False
        self._is_idle = True
        self._looks = limits.ASKS_PER_STEP_MAX
        self._blocks = self._tokens = 0

    def bind_pool(self, pool: Any) -> None:
        self._pool = pool

    def next_step(self, *, is_idle: bool) -> None:
        """Reset after a step's scheduling; after an idle step any request could have started."""
        self._is_fresh, self._is_idle = False, is_idle
        self._looks = limits.ASKS_PER_STEP_MAX

    def takes_look(self) -> bool:
        """Tell whether the step may look at one more request with news."""
        self._looks -= 1
        return self._looks >= 0

    def fits(self, request: Any, start: int) -> bool:
        """Tell whether the step could start a request after its first `start` tokens, and deduct its share."""
        if self._pool is None:
            return True
        if not self._is_fresh:
            self._is_fresh = True
            self._blocks, self._tokens = self._pool.get_num_free_blocks(), self._step_tokens
        if not self._is_idle and (self._tokens <= 0 or self._blocks <= 0):
            return False  # the usual case when many requests wait
        need = self._blocks_of(request.num_tokens)
        fits = self._is_idle or self._blocks >= need
        self._is_idle = False
        if fits:
            self._blocks -= need
            self._tokens -= request.num_tokens - start
        return fits

    def _blocks_of(self, tokens: int) -> int:
        blocks = 0
        for group in self._grid.groups:
            whole = -(-tokens // group.block_tokens)
            blocks += min(whole, group.tail + 1) if group.tail else whole
        return blocks


class Budget:
    """The restore budget in seconds: `stall_s` without progress of a plan, `wait_s` in all. Also bounds a step's looks.

    vLLM queries every waiting request in every step, and most answers repeat the last one. A step looks at a bounded
    number of requests with news, first come, first served; the others wait one more step. A request whose time is
    over is always looked at, so none waits longer than the budget.
    """

    def __init__(
        self, room: StepRoom, book: PlanBook, suspect: Callable[[], None], counters: Counters
    ) -> None:
        self.room = room
        self._book = book
        self._suspect = suspect
        self._counters = counters
        self.wait_s, self.stall_s = limits.WAIT_MS_DEFAULT / 1e3, limits.STALL_MS_DEFAULT / 1e3

    def goes_on_waiting(self, state: RequestState, start: int, now: float) -> bool:
        """Tell whether a request goes on waiting, without a look at its placed blocks."""
        self._begin(state, start, now)
        plan = self._book.get(state.request.request_id)
        if plan is None:
            return False
        waits, asked_s = state.waits, state.first_ask_s
        if waits is not None and waits.plan is plan and waits.start == start:
            # Early for a plan that is handed over; `is_out` decides.
            if asked_s is not None and (
                now - waits.silent_since_s >= self.stall_s or now - asked_s >= self.wait_s
            ):
                return False
            if waits.news == plan.news and waits.is_timed is (asked_s is not None):
                return True
        if self.room.takes_look():
            return False
        self._counters.add("asks_put_off")
        return True

    def _begin(self, state: RequestState, start: int, now: float) -> None:
        """Start a request's clock once vLLM has room for it, or has queried it for `NO_ROOM_WAIT_S`.

        Without room, waiting costs nothing. The bound keeps smaller requests from overtaking it for ever.
        """
        if state.seen_s is None:
            state.seen_s = now
        fits = self.room.fits(state.request, start)
        if state.first_ask_s is None and (fits or now - state.seen_s >= limits.NO_ROOM_WAIT_S):
            state.first_ask_s = now

    def wait(self, state: RequestState, plan: Plan, news: int, start: int) -> None:
        """Remember what a request waits for; `news`: its plan's count of news before the look."""
        asked_s = state.first_ask_s
        silent_since_s = max(plan.progress_at_s, asked_s or 0.0)
        state.waits = Waiting(plan, news, start, asked_s is not None, silent_since_s)

    def is_stalled(self, state: RequestState, now: float) -> bool:
        """Tell whether `stall_s` has passed since the first query."""
        return state.first_ask_s is not None and now - state.first_ask_s >= self.stall_s

    def is_out_for_name(self, state: RequestState, now: float) -> bool:
        """Tell whether a request has waited long enough for the name, which may take the reading of all weights.

        Half of what computing its held blocks would take, at most `wait_s`; `stall_s` where that is less or not known.
        """
        if state.first_ask_s is None:
            return False
        plan = self._book.get(state.request.request_id)
        compute_ms = 0 if plan is None else plan.compute_ms or 0
        most_s = min(self.wait_s, compute_ms / 2e3)
        return now - state.first_ask_s >= max(self.stall_s, most_s)

    def is_out(self, state: RequestState, plan: Plan, now: float) -> bool:
        """Tell whether either time is over; notifies the sidecar that the clock runs."""
        if state.first_ask_s is None:
            return False
        self._book.ask(plan)
        silent_s = now - max(plan.progress_at_s, state.first_ask_s)
        is_stalled = silent_s >= self.stall_s and (plan.is_looked_up or not plan.is_handed_over)
        if is_stalled and not plan.is_looked_up:
            self._suspect()  # not even the look-up was answered
        late = is_stalled or now - state.first_ask_s >= self.wait_s * plan.windows
        state.gave_up = late and plan.arena < 0
        return late
