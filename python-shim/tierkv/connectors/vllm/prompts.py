"""Owns what is counted and said about prompts that no block fits into, and about those longer than one look-up."""

import logging
from typing import Any

from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.grid import Grid

log = logging.getLogger("tierkv.shim")


class PromptLengths:
    """Says each once. Where blocks are as long as prompts, with recurrent states, a short one never hits."""

    def __init__(self, grid: Grid, counters: Counters) -> None:
        self._grid = grid
        self._counters = counters
        self._is_silent = not any(group.is_state for group in grid.groups)
        self._is_cut_said = False

    def note(self, request: Any) -> None:
        """Count a prompt if it is too short or too long."""
        if request.num_tokens <= self._grid.step:
            self._note_short(request)
        elif self._grid.beyond(request) > 0:
            self._note_long(request)

    def _note_short(self, request: Any) -> None:
        self._counters.add("prompts_below_block")
        if not self._is_silent:
            self._is_silent = True
            log.info(
                "tierKV: a prompt of %d tokens is not longer than one block of this hybrid model (%d tokens), so "
                "nothing of it can be restored; further ones are counted only (shim_prompts_below_block)",
                request.num_tokens,
                self._grid.step,
            )

    def _note_long(self, request: Any) -> None:
        self._counters.add("prompts_cut")
        if not self._is_cut_said:
            self._is_cut_said = True
            log.warning(
                "tierKV: of a prompt of %d tokens the first %d are looked up, which is what one question may hold; "
                "further ones are counted only (shim_prompts_cut)",
                request.num_tokens,
                self._grid.limit(request),
            )
