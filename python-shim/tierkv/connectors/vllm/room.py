"""Owns what the engine could begin in one step: a request that it has no room for loses nothing by waiting for blocks."""

from typing import Any

from tierkv.connectors.vllm.grid import Grid


class StepRoom:
    """KV blocks and tokens that the requests asked about in this step would take, were they computed.

    vLLM asks about every waiting request until one finds no blocks; those that are told to wait take none, so it goes on
    with requests which it could not have begun beside them.
    """

    def __init__(self, grid: Grid, step_tokens: int) -> None:
        self._grid = grid
        self._step_tokens = step_tokens
        self._pool: Any = None
        self._is_fresh = False
        self._blocks = self._tokens = 0

    def bind_pool(self, pool: Any) -> None:
        """Take the engine's block pool."""
        self._pool = pool

    def next_step(self) -> None:
        """Hear that a step's scheduling has ended."""
        self._is_fresh = False

    def fits(self, request: Any, start: int) -> bool:
        """Tell whether the step could begin to compute a request behind its first `start` tokens; it counts from then on."""
        if self._pool is None:
            return True
        if not self._is_fresh:
            self._is_fresh = True
            self._blocks, self._tokens = self._pool.get_num_free_blocks(), self._step_tokens
        fits = self._tokens > 0 and self._blocks >= (need := self._blocks_of(request.num_tokens))
        if fits:
            self._blocks -= need
            self._tokens -= request.num_tokens - start
        return fits

    def _blocks_of(self, tokens: int) -> int:
        return sum(
            min(-(-tokens // group.block_tokens), group.tail + 1 if group.tail else tokens)
            for group in self._grid.groups
        )
