"""Chooses the blocks to save in a step: those it completes, and the states vLLM hands over."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.requests.answers import ALL_TOKENS
from tierkv.connectors.vllm.requests.requests import RequestState
from tierkv.connectors.vllm.save.saves import SavePlanner


class StepOffers:
    """Offers each request's new blocks of a step to the save planner; `requests` are the scheduler side's."""

    def __init__(
        self,
        saves: SavePlanner,
        naming: Naming,
        requests: Mapping[str, RequestState],
        counters: Counters,
    ) -> None:
        self._saves = saves
        self._naming = naming
        self._requests = requests
        self._counters = counters

    def put_off(self, scheduler_output: Any) -> None:
        """Leave this step's blocks to the next one."""
        for req_id in scheduler_output.num_scheduled_tokens:
            self._saves.begin(self._requests.get(req_id))

    def choose(self, scheduler_output: Any, tables: compat.BlockTables) -> None:
        """Offer the blocks this step completes; `tables`: block tables by request."""
        scheduled = scheduler_output.num_scheduled_tokens
        due = []
        for (
            req_id
        ) in scheduled:  # one comparison each, because few decoding requests complete a block
            state = self._requests.get(req_id)
            if state is not None:
                computed_after = state.request.num_computed_tokens + scheduled[req_id]
                if computed_after >= state.cursor.due_tokens:
                    due.append((state, computed_after))
        states = compat.boundary_states(scheduler_output) if self._saves.has_states else None
        if not due and not states:
            return
        if not self._naming.is_complete:
            self._counters.add("steps_unnamed")
            return
        for req_id, handed in (states or {}).items():
            if req_id in scheduler_output.scheduled_spec_decode_tokens:
                # Accepted drafts are known only after the step, so the page may hold a state beyond them.
                self._counters.add("states_with_drafts", len(handed))
            elif (state := self._requests.get(req_id)) is not None:
                self._offer_states(state, handed)
        for state, computed_after in due:
            if state.plan is not None:
                state.cursor.asked_at_s = state.plan.opened_at_s
            self._saves.offer(
                state.request,
                state.cursor,
                min(computed_after, state.wish.save_tokens),
                state.missing,
                partial(tables.of, state.request.request_id),
            )
            if computed_after >= state.wish.save_tokens:
                state.cursor.due_tokens = ALL_TOKENS

    def _offer_states(self, state: RequestState, handed: Sequence[tuple[int, int, int]]) -> None:
        for group, block_id, end_tokens in handed:
            if end_tokens > state.wish.save_tokens:
                continue
            if self._saves.offer_state(state.request, group, block_id, end_tokens, state.missing):
                reached = state.cursor.state_tokens
                reached[group] = max(end_tokens, reached.get(group, 0))
