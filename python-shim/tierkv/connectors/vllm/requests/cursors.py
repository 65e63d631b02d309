"""Owns the records of saving: how far each request was offered, blocks that wait, and copies under way."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import SaveItem

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
    #: When its look-up was requested, or it came: what was saved since may be held without being reported.
    asked_at_s: float = field(default_factory=time.monotonic)
    #: Whether all its blocks are returning ones: a conversation goes on, or another engine awaits them.
    returns: bool = False
    #: Whether offering began at the prompt's start, so that no block before a returning one is missing.
    is_whole: bool = False
    #: Groups with a block computed for the first time; later blocks are first-time ones, too.
    fresh: set[int] = field(default_factory=set)
    #: Whether its last step asked the workers, so that the step's blocks are still to be offered.
    is_put_off: bool = False


@dataclass(slots=True)
class Rest:
    """Blocks of a request, up to `computed` tokens, still to be offered, even after its end."""

    request: Any
    cursor: SaveCursor
    computed: int
    missing: Missing | None


class SavedBlocks:
    """When blocks, by group and hash, were given to the workers to save; past the ceiling the oldest are forgotten.

    Requests that compute a prompt at once have look-ups that are older than its first save.
    """

    def __init__(self) -> None:
        self._saved_at_s: OrderedDict[tuple[int, bytes], float] = OrderedDict()

    def add(self, group: int, block_hash: bytes, now: float) -> None:
        self._saved_at_s[group, block_hash] = now
        if len(self._saved_at_s) > limits.SAVED_BLOCKS_MAX:
            self._saved_at_s.popitem(last=False)

    def drop(self, group: int, block_hash: bytes) -> None:
        """Forget a block that some rank had no slot for."""
        self._saved_at_s.pop((group, block_hash), None)

    def is_newer(self, group: int, block_hash: bytes, asked_at_s: float) -> bool:
        """Tell whether a block was saved after a look-up for it was requested."""
        return self._saved_at_s.get((group, block_hash), asked_at_s) > asked_at_s

    def clear(self) -> None:
        self._saved_at_s.clear()


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
