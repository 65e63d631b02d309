"""Owns what is counted and said about prompts that no block fits into."""

import logging
from typing import Any

from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.grid import Grid

log = logging.getLogger("tierkv.shim")


class ShortPrompts:
    """Says once why such a prompt never hits, where blocks are as long as prompts: with recurrent states."""

    def __init__(self, grid: Grid, counters: Counters) -> None:
        self._step = grid.step
        self._counters = counters
        self._is_silent = not any(group.is_state for group in grid.groups)

    def note(self, request: Any) -> None:
        """Count a prompt if it is too short."""
        if request.num_tokens > self._step:
            return
        self._counters.add("prompts_below_block")
        if not self._is_silent:
            self._is_silent = True
            log.info(
                "tierKV: a prompt of %d tokens is not longer than one block of this hybrid model (%d tokens), so "
                "nothing of it can be restored; further ones are counted only (shim_prompts_below_block)",
                request.num_tokens,
                self._step,
            )
