"""Owns what saving remembers: how far each request was offered, blocks that wait, and copies under way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierkv.connectors.vllm.metadata import SaveItem

#: Gives those of a group's blocks, from one to another, that were not reported as held.
Missing = Callable[[int, int, int], Sequence[int]]


@dataclass(slots=True)
class SaveCursor:
    """How far a request's blocks were offered: the next block index by group; empty before its first step."""

    next_block: dict[int, int] = field(default_factory=dict)
    #: Groups whose blocks behind a lost one are not saved: nothing could restore them.
    cut: set[int] = field(default_factory=set)
    #: Before so many tokens are computed no further block is full.
    due_tokens: int = 0
    #: By group of states: the deepest boundary of which one was offered.
    state_tokens: dict[int, int] = field(default_factory=dict)
    #: A conversation's, or awaited: all its blocks are returning ones.
    returns: bool = False
    #: All blocks that were not held were offered: nothing before a returning one waits elsewhere.
    is_whole: bool = False
    #: Groups of which a block came for the first time; those behind it do, too.
    fresh: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Rest:
    """Blocks of a request up to `computed` tokens that go on being offered, also when it has ended."""

    request: Any
    cursor: SaveCursor
    computed: int
    missing: Missing | None


@dataclass(slots=True)
class WaitingBlock:
    """A chosen block. `step`: the one in which `item.block_id` was its place for certain; later the pool is asked.

    `cursors`: of all requests that offered it while it waited.
    """

    item: SaveItem
    cursors: list[SaveCursor]
    step: int
    is_returning: bool = False


@dataclass(slots=True)
class StepTicket:
    """What one step copies. `ranks`: how many are not done; `refused`: last items without a slot on some rank."""

    ranks: int
    chosen: list[WaitingBlock]
    block_ids: list[int]
    refused: int = 0
