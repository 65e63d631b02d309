"""Owns what a step spends on requests that wait: little where nothing is new, and never all of them at once."""

from tierkv.connectors.vllm.budget import Budget
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.plans import Plan, PlanBook
from tierkv.connectors.vllm.requests import RequestState, Waiting


class Asks:
    """vLLM asks about every waiting request in every step: most are told what they were told before.

    Of those with news a step looks at a bounded number, first come, first served; the others wait one step more. One
    whose time is over is looked at in any case, so nobody waits longer than the restore budget.
    """

    def __init__(self, book: PlanBook, budget: Budget, counters: Counters) -> None:
        self._book = book
        self._budget = budget
        self._counters = counters

    def waits_on(self, state: RequestState, start: int, now: float) -> bool:
        """Tell whether a request goes on waiting, without a look at what was placed."""
        self._budget.begin(state, start, now)
        plan = self._book.get(state.request.request_id)
        if plan is None:
            return False
        waits, asked_s = state.waits, state.first_ask_s
        if waits is not None and waits.plan is plan and waits.start == start:
            if asked_s is not None and self._budget.may_be_out(asked_s, waits.silent_since_s, now):
                return False
            if waits.news == plan.news and waits.is_timed is (asked_s is not None):
                return True
        if self._budget.room.takes_look():
            return False
        self._counters.add("asks_put_off")
        return True

    def wait(self, state: RequestState, plan: Plan, news: int, start: int) -> None:
        """Remember what a request waits for; `news`: what had been heard of its plan before that was found."""
        asked_s = state.first_ask_s
        silent_since_s = max(plan.progress_at_s, asked_s or 0.0)
        state.waits = Waiting(plan, news, start, asked_s is not None, silent_since_s)
