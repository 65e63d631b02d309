"""Owns prompts' hand-offs from the engine that computes to the one that answers, on both sides.

By vLLM's `kv_role` a producer restores nothing and names every prompt in its answer, and a consumer saves
nothing. `kv_both` does all, and names prompts on request.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.answers import Handoff
from tierkv.connectors.vllm.requests.requests import RequestState
from tierkv.connectors.vllm.restore.longer import LongerBlocks, key_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Handoffs:
    """The hand-offs of one engine; one that does not fit is counted, and its prompt is computed like any other."""

    def __init__(
        self, config: "VllmConfig", grid: Grid, naming: Naming, counters: Counters
    ) -> None:
        role = config.kv_transfer_config.kv_role
        self._is_producer = role == "kv_producer"
        self._is_consumer = role == "kv_consumer"
        #: The sidecar's reason for a request that restores nothing.
        self.unread = "producer" if self._is_producer else "not_reading"
        self._grid = grid
        self._naming = naming
        self._counters = counters
        self._longer = LongerBlocks(config, grid, naming)

    def begin(self, request: Any) -> RequestState:
        """Make a new request's state, with the role's restrictions."""
        reads = not (self._is_producer or request.skip_reading_prefix_cache)
        state = RequestState(request, reads)
        if self._is_consumer:
            state.wish = replace(state.wish, save_tokens=0)
        return state

    def told(self, state: RequestState) -> Handoff | None:
        """Give the hand-off for the engine that restores the prompt: the tokens saved, and their key."""
        if not (self._is_producer or state.wish.tells) or not self._naming.digest:
            return None
        request = state.request
        tokens = min(request.num_prompt_tokens, self._grid.hashed(request), self._saved(state))
        tokens -= tokens % self._grid.step
        if tokens <= 0:
            return None
        self._counters.add("handoffs_told")
        return Handoff(tokens, self._key(request, tokens), self._longer.own_tokens)

    def awaited(self, state: RequestState, own: int, most: int) -> int:
        """Give the prompt tokens that another engine saves: 0 where none fits, or none lies beyond the engine's `own`.

        The key covers every token before it and the namespace, so another prompt's never fits.
        """
        said, request = state.wish.handoff, state.request
        if said is None or state.awaited is not None or not self._naming.digest:
            return _beyond(own, min(most, state.awaited or 0))
        hashed = self._grid.hashed(request)
        fits = said.tokens % self._grid.step == 0 and said.tokens <= hashed
        if fits and self._key(request, said.tokens) == said.key:
            state.awaited = said.tokens
            self._counters.add("handoffs_taken")
        elif fits and self._is_consumer and (longer := self._longer.of(request, said)):
            state.awaited, state.longer = said.tokens, longer
            self._counters.add("handoffs_taken")
            self._counters.add("handoffs_longer")
        else:
            state.awaited = 0
            self._counters.add("handoffs_foreign")
        return _beyond(own, min(most, state.awaited))

    def _saved(self, state: RequestState) -> int:
        """Give the tokens up to which all groups were offered."""
        cursor = state.cursor
        if cursor.cut:
            return 0
        return min(
            cursor.state_tokens.get(group.index, 0)
            if group.is_state
            else cursor.next_block.get(group.index, 0) * group.block_tokens
            for group in self._grid.groups
        )

    def _key(self, request: Any, tokens: int) -> str:
        last = bytes(request.block_hashes[tokens // self._grid.hash_tokens - 1])
        return key_of(self._naming.digest, last)


def _beyond(own: int, tokens: int) -> int:
    return tokens if tokens > own else 0
