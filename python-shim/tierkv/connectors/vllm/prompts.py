"""Owns what is counted and said about prompts that no block fits into, and about those longer than one look-up."""

import logging
from typing import Any

from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.grid import Grid

log = logging.getLogger("tierkv.shim")


def note_length(request: Any, grid: Grid, counters: Counters) -> None:
    """Count a prompt if it is too short or too long; say each once.

    Where blocks are as long as prompts, with recurrent states, a short one never hits.
    """
    if request.num_tokens <= grid.step:
        is_first = counters.add("prompts_below_block") == 1
        if is_first and any(group.is_state for group in grid.groups):
            log.info(
                "tierKV: a prompt of %d tokens is not longer than one block of this hybrid model (%d tokens), so "
                "nothing of it can be restored; further ones are counted only (shim_prompts_below_block)",
                request.num_tokens,
                grid.step,
            )
    elif grid.beyond(request) > 0 and counters.add("prompts_cut") == 1:
        log.warning(
            "tierKV: of a prompt of %d tokens the first %d are looked up, which is what one question may hold; "
            "further ones are counted only (shim_prompts_cut)",
            request.num_tokens,
            grid.limit(request),
        )
