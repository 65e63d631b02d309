"""Owns the choice of requests that share a plan: prompts that arrive together are looked up and fetched once."""

from collections import OrderedDict
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.leaders import shared_hashes
from tierkv.connectors.vllm.requests.plans import Plan, PlanBook

#: Ends of a plan that hold for every request of the same beginning: what is held, and what is computed sooner. If
#: each request asked again, one could load what another computes, each into blocks of its own.
_SHARED_ENDS: Final = (None, "complete", "end_of_hit", "slower")


class SharedPlans:
    """Plans under way by the hash of the first block that each fetches; bounded, the oldest are forgotten."""

    def __init__(self, grid: Grid, book: PlanBook) -> None:
        self._grid = grid
        self._book = book
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()

    def note(self, request: Any, plan: Plan, first_tokens: int) -> None:
        """Offer a plan to requests that come later."""
        plan.hashes = request.block_hashes
        key = self._first(request, first_tokens)
        self._plans[key] = plan
        self._plans.move_to_end(key)
        if len(self._plans) > limits.PLANS_SHARED_MAX:
            self._plans.popitem(last=False)

    def covering(self, request: Any, first_tokens: int, most: int) -> tuple[Plan, int] | None:
        """Find a plan that fetches what a request needs after `first_tokens` tokens.

        Gives it with the prompt tokens that both have in common, at most `most`; so many may be restored by it. None
        where there is none, or where the two prompts would be restored up to different boundaries.
        """
        if not self._plans:
            return None
        key = self._first(request, first_tokens)
        plan = self._plans.get(key)
        if plan is None:
            return None
        if not plan.holders or plan.connection != self._book.connection:
            del self._plans[key]
            return None
        if plan.first_tokens != first_tokens or plan.done_reason not in _SHARED_ENDS:
            return None
        size, step = self._grid.hash_tokens, self._grid.step
        end = min(most, plan.asked_tokens)
        tokens = shared_hashes(plan.hashes, request.block_hashes, end // size) * size
        tokens -= tokens % step
        if not self._grid.is_plain and not tokens == most == plan.asked_tokens:
            return None
        return (plan, tokens) if tokens > first_tokens else None

    def _first(self, request: Any, first_tokens: int) -> bytes:
        return bytes(request.block_hashes[first_tokens // self._grid.hash_tokens])
