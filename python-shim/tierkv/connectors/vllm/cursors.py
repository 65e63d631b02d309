"""Owns the records of saving: how far each request was offered, blocks that wait, and copies under way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierkv.connectors.vllm.metadata import SaveItem

#: Gives a group's blocks in a range (group, first, end) that were not reported as held.
Missing = Callable[[int, int, int], Sequence[int]]


@dataclass(slots=True)
class SaveCursor:
    """How far a request's blocks were offered: the next block index by group; empty before its first step."""

    next_block: dict[int, int] = field(default_factory=dict)
    #: Groups that lost a block: later blocks are not saved, because no restore could use them.
    cut: set[int] = field(default_factory=set)
    #: Computed tokens at which the next block is full.
    due_tokens: int = 0
    #: Deepest boundary in tokens with an offered state, by group of states.
    state_tokens: dict[int, int] = field(default_factory=dict)
    #: Whether all its blocks are returning ones: a conversation goes on, or another engine awaits them.
    returns: bool = False
    #: Whether offering began at the prompt's start, so that no block before a returning one is missing.
    is_whole: bool = False
    #: Groups with a block computed for the first time; later blocks are first-time ones, too.
    fresh: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Rest:
    """Blocks of a request, up to `computed` tokens, still to be offered, even after its end."""

    request: Any
    cursor: SaveCursor
    computed: int
    missing: Missing | None


@dataclass(slots=True)
class WaitingBlock:
    """A chosen block. `step`: the step for which `item.block_id` is certain; later the pool is searched.

    `cursors`: of all requests that offered it while it waited.
    """

    item: SaveItem
    cursors: list[SaveCursor]
    step: int
    is_returning: bool = False


@dataclass(slots=True)
class StepTicket:
    """One step's copies. `ranks`: ranks not done yet; `refused`: last items that some rank had no slot for."""

    ranks: int
    chosen: list[WaitingBlock]
    block_ids: list[int]
    refused: int = 0
