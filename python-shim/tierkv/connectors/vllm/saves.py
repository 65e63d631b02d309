"""Chooses which blocks to save in a step, and holds references on them until every rank has copied them."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.grid import Grid
from tierkv.connectors.vllm.metadata import SaveItem
from tierkv.connectors.vllm.specs import Group
from tierkv.connectors.vllm.tenants import tenant_of


@dataclass
class SaveCursor:
    """How far a request's blocks were offered: the next block index by group; empty before its first step."""

    next_block: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Waiting:
    req_id: str
    item: SaveItem


class SavePlanner:
    """Offers each full, computed, non-null block of a request once, past its cursor, unless reported as held.

    A source block carries a reference of ours from the moment it is chosen until all ranks have copied or dropped it;
    that never depends on sidecar or vault. References go back tail block first, on the scheduler's thread only.
    Recurrent states are offered only where vLLM hands them over, and are copied in that very step.
    """

    def __init__(self, grid: Grid, world: int, kv_blocks: int, counters: Counters) -> None:
        self._grid = grid
        self._attention = [group for group in grid.groups if not group.is_state]
        self._states = {group.index: group for group in grid.groups if group.is_state}
        self._block_bytes = {group.index: group.block_bytes for group in grid.groups}
        self._world = world
        self._counters = counters
        largest = max(self._block_bytes.values(), default=1)
        self._backlog_max = limits.SAVE_BYTES_PER_STEP_MAX // largest + max(
            1,
            min(
                limits.SAVE_BACKLOG_BYTES_MAX // largest,
                kv_blocks // limits.SAVE_BACKLOG_BLOCKS_FRACTION,
            ),
        )
        self._pool: Any = None
        self._backlog: deque[_Waiting] = deque()
        self._now: list[SaveItem] = []
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
        holds: Callable[[int, int], bool] | None,
        tables: Callable[[], Sequence[Sequence[int]] | None],
    ) -> None:
        """Choose the blocks this step completes. `holds` (of group and index) is None when nobody answered the look-up.

        Then blocks the engine already had are passed over: they were offered when they were computed.
        """
        hashed = len(request.block_hashes) * self._grid.hash_tokens
        found: Sequence[Sequence[int]] | None = None
        for group in self._attention:
            full = min(computed_after, hashed) // group.block_tokens
            computed = request.num_computed_tokens // group.block_tokens
            first = cursor.next_block.get(group.index, computed if holds is None else 0)
            cursor.next_block[group.index] = max(first, full)
            missing = [i for i in range(first, full) if holds is None or not holds(group.index, i)]
            if not missing:
                continue
            found = found if found is not None else tables()
            if found is None:
                return
            self._choose(request, group, missing, found[group.index])

    def _choose(self, request: Any, group: Group, indices: list[int], table: Sequence[int]) -> None:
        for index in indices:
            block_id = table[index] if index < len(table) else 0
            if (
                block_id == 0
            ):  # vLLM's null block: nothing was computed here, or no window reaches it
                continue
            if len(self._backlog) >= self._backlog_max:
                self._counters.add("dropped_save_backlog")
                continue
            self._reference(block_id)
            item = self._item(request, group, index, block_id)
            self._backlog.append(_Waiting(request.request_id, item))

    def offer_state(
        self,
        request: Any,
        group_index: int,
        block_id: int,
        end_tokens: int,
        holds: Callable[[int, int], bool] | None,
    ) -> None:
        """Take a recurrent state that vLLM hands over in this step: block `block_id` holds it once the forward is done.

        States within a block are passed over and counted: no whole set of blocks ends there.
        """
        group = self._states.get(group_index)
        if group is None or block_id == 0:
            return
        if end_tokens % self._grid.step:
            self._counters.add("states_within_block")
            return
        index = end_tokens // group.block_tokens - 1
        is_hashed = end_tokens <= len(request.block_hashes) * self._grid.hash_tokens
        if index < 0 or not is_hashed or (holds is not None and holds(group_index, index)):
            return
        self._reference(block_id)
        self._now.append(self._item(request, group, index, block_id))
        self._counters.add("states_offered")

    def _item(self, request: Any, group: Group, index: int, block_id: int) -> SaveItem:
        return SaveItem(
            group=group.index,
            block_id=block_id,
            block_hash=self._grid.block_hash(request, group, index),
            parent_hash=self._grid.parent_hash(request, group, index),
            end_tokens=(index + 1) * group.block_tokens,
            tenant=tenant_of(request),
        )

    def next_step(self) -> tuple[int, list[SaveItem]]:
        """Give this step's ticket and its share of the chosen blocks: at least one, and every state."""
        items, self._now = self._now, []
        room = limits.SAVE_BYTES_PER_STEP_MAX
        while self._backlog:
            room -= self._block_bytes[self._backlog[0].item.group]
            if room < 0 and items:
                break
            items.append(self._backlog.popleft().item)
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
        return bool(self._backlog or self._now or self._in_flight)

    def _reference(self, block_id: int) -> None:
        self._pool.touch([self._pool.blocks[block_id]])

    def _release(self, block_ids: list[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[block_id] for block_id in reversed(block_ids)])
