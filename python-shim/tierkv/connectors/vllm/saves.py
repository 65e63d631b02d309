"""Chooses which blocks to save in a step, and holds references on them until every rank has copied them."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.metadata import SaveItem
from tierkv.connectors.vllm.specs import Group

_NO_PARENT = bytes(32)


@dataclass
class SaveCursor:
    """How far a request's blocks were offered: the next block index, or None before its first step."""

    next_block: int | None = None


@dataclass(frozen=True)
class _Waiting:
    req_id: str
    item: SaveItem


class SavePlanner:
    """Offers each full, computed, non-null block of a request once, past its cursor, unless reported as held.

    A source block carries a reference of ours from the moment it is chosen until all ranks have copied or dropped it;
    that never depends on sidecar or vault. References go back tail block first, on the scheduler's thread only.
    """

    def __init__(
        self, group: Group, ratio: int, world: int, kv_blocks: int, counters: Counters
    ) -> None:
        self._group = group
        self._ratio = ratio  # block hashes per block
        self._world = world
        self._counters = counters
        self._per_step = max(1, limits.SAVE_BYTES_PER_STEP_MAX // group.block_bytes)
        self._backlog_max = max(
            1,
            min(
                limits.SAVE_BACKLOG_BYTES_MAX // group.block_bytes,
                kv_blocks // limits.SAVE_BACKLOG_BLOCKS_FRACTION,
            ),
        )
        self._pool: Any = None
        self._backlog: deque[_Waiting] = deque()
        self._in_flight: dict[int, tuple[int, list[int]]] = {}
        self._ticket = 0

    def bind_pool(self, pool: Any) -> None:
        """Take the engine's block pool (vLLM `v1/core/block_pool.py`)."""
        self._pool = pool

    def offer(
        self,
        request: Any,
        cursor: SaveCursor,
        computed_after: int,
        holds: Callable[[int], bool] | None,
        block_ids: Callable[[], Sequence[int] | None],
    ) -> None:
        """Choose the blocks this step completes. `holds` is None when the look-up was not answered.

        Then blocks the engine already had are passed over: they were offered when they were computed.
        """
        full = min(
            computed_after // self._group.block_tokens, len(request.block_hashes) // self._ratio
        )
        if cursor.next_block is None:
            computed = request.num_computed_tokens // self._group.block_tokens
            cursor.next_block = computed if holds is None else 0
        first, cursor.next_block = cursor.next_block, max(cursor.next_block, full)
        missing = [i for i in range(first, full) if holds is None or not holds(i)]
        if not missing or (table := block_ids()) is None:
            return
        for index in missing:
            block_id = table[index] if index < len(table) else 0
            if block_id == 0:  # vLLM's null block: nothing was computed here
                continue
            if len(self._backlog) >= self._per_step + self._backlog_max:
                self._counters.add("dropped_save_backlog")
                continue
            self._reference(block_id)
            self._backlog.append(_Waiting(request.request_id, self._item(request, index, block_id)))

    def _item(self, request: Any, index: int, block_id: int) -> SaveItem:
        hashes = request.block_hashes
        parent = hashes[index * self._ratio - 1] if index else _NO_PARENT
        return SaveItem(
            group=self._group.index,
            block_id=block_id,
            block_hash=bytes(hashes[(index + 1) * self._ratio - 1]),
            parent_hash=bytes(parent),
            end_tokens=(index + 1) * self._group.block_tokens,
        )

    def next_step(self) -> tuple[int, list[SaveItem]]:
        """Give this step's ticket and its share of the chosen blocks."""
        items = [
            self._backlog.popleft().item for _ in range(min(self._per_step, len(self._backlog)))
        ]
        if items:
            self._ticket += 1
            self._in_flight[self._ticket] = (self._world, [item.block_id for item in items])
        return self._ticket, items

    def acknowledge(self, ticket: int, ranks: int) -> None:
        """Hear that `ranks` more ranks are done with a ticket; the last one ends the references."""
        if ticket not in self._in_flight:
            return
        missing, block_ids = self._in_flight[ticket]
        if missing > ranks:
            self._in_flight[ticket] = (missing - ranks, block_ids)
            return
        del self._in_flight[ticket]
        self._release(block_ids)

    def drop_request(self, req_id: str) -> None:
        """Drop what a finished request still has waiting, for engines that take no step without requests."""
        dropped = [waiting for waiting in self._backlog if waiting.req_id == req_id]
        if dropped:
            self._backlog = deque(waiting for waiting in self._backlog if waiting.req_id != req_id)
            self._counters.add("dropped_save_engine_idle", len(dropped))
            self._release([waiting.item.block_id for waiting in dropped])

    @property
    def has_work(self) -> bool:
        """Tell whether blocks wait or are being copied."""
        return bool(self._backlog or self._in_flight)

    def _reference(self, block_id: int) -> None:
        self._pool.touch([self._pool.blocks[block_id]])

    def _release(self, block_ids: list[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[block_id] for block_id in reversed(block_ids)])
