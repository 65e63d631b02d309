"""Chooses which blocks to save in a step, and holds references on them until every rank has copied them."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import SaveItem, StepReceipts
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.answers import ALL_TOKENS
from tierkv.connectors.vllm.requests.cursors import (
    Missing,
    Rest,
    SaveCursor,
    SavedBlocks,
    StepTicket,
    WaitingBlock,
)
from tierkv.connectors.vllm.requests.requests import tenant_of
from tierkv.connectors.vllm.requests.visits import Visits

#: Place of a block that must be looked up in the pool.
_UNKNOWN = -1


class SavePlanner:
    """Offers each full, computed, non-null block of a request once, past its cursor, unless reported as held.

    A block that a step cannot copy waits without a reference: it stays in the engine's own cache, even after the
    request's end, and is found there by its hash until vLLM evicts it. Returning blocks go before first-time ones, each
    in the order chosen, which is prefix first; after a lost block nothing of its chain is saved.
    A block that a step copies carries our reference until all ranks have copied or refused it; that never depends
    on sidecar or vault. References go back tail block first, on the scheduler's thread only.
    Recurrent states are offered only where vLLM hands them over, and are copied in that very step.
    """

    def __init__(
        self,
        grid: Grid,
        world: int,
        kv_blocks: int,
        counters: Counters,
        saw: Callable[[Any, Group, Sequence[int]], None] = lambda *_: None,
    ) -> None:
        self._grid = grid
        self._attention = [group for group in grid.groups if not group.is_state]
        self._states = {group.index: group for group in grid.groups if group.is_state}
        self.has_states = bool(self._states)
        self._block_bytes = {group.index: group.block_bytes for group in grid.groups}
        self._tails = {group.index: group.tail for group in grid.groups}
        self.token_bytes = sum(group.block_bytes / group.block_tokens for group in self._attention)
        self._token_blocks = sum(1 / group.block_tokens for group in self._attention)
        self._world = world
        self._counters = counters
        self._saw = saw
        # The engine's cache holds no more than this, so the oldest is lost where more waits.
        self._waiting_max = max(1, kv_blocks) * max(1, len(self._attention))
        self._pool: Any = None
        self.visits = Visits()
        self._returning: OrderedDict[tuple[int, bytes], WaitingBlock] = OrderedDict()
        self._first_time: OrderedDict[tuple[int, bytes], WaitingBlock] = OrderedDict()
        self._saved = SavedBlocks()
        self._now: list[WaitingBlock] = []
        #: Requests with blocks left to offer, by cursor; and the blocks that this step may still offer of them.
        self._behind: dict[int, Rest] = {}
        self._more = limits.SAVE_ITEMS_PER_STEP_MAX
        self._in_flight: dict[int, StepTicket] = {}
        self._ticket = 0
        #: Ticket of the step being planned, which the workers do not have yet.
        self._planned = StepTicket(0, [], [])
        self._step = 0
        self._slots: int | None = None
        #: When an engine without requests first had no slot to save into, seconds; None while it saves or computes.
        self._stuck_at_s: float | None = None
        #: When the last step with tokens was planned, seconds.
        self._computed_at_s = time.monotonic()

    def bind_pool(self, pool: Any) -> None:
        self._pool = pool

    def begin(self, state: Any) -> None:
        """Remember where a request stands in a step that asks the workers: the next one offers what this one computes.

        `state`: what the scheduler keeps of the request, or None. With an answered look-up all of it is offered anyway.
        """
        if state is None:
            return
        state.cursor.is_put_off = True
        if state.missing is not None:
            return
        for group in self._attention:
            computed = state.request.num_computed_tokens // group.block_tokens
            state.cursor.next_block.setdefault(group.index, computed)

    def end(self, state: Any) -> None:
        """Keep the blocks of a request that ends before the workers have answered; they are offered afterwards."""
        if state.cursor.is_put_off:
            request = state.request
            computed = min(request.num_computed_tokens, state.wish.save_tokens)
            self._fall_behind(Rest(request, state.cursor, computed, state.missing))

    def offer(
        self,
        request: Any,
        cursor: SaveCursor,
        computed_after: int,
        missing: Missing | None,
        tables: Callable[[], Sequence[Sequence[int]] | None],
    ) -> None:
        """Choose the blocks this step completes. `missing` is None when the look-up had no answer.

        Then blocks the engine already had are skipped, because they were offered when computed. Beyond the step's own
        blocks it takes a bounded number; the others follow in later steps, also after the request's end.
        """
        cursor.is_put_off = False
        if not cursor.next_block:
            cursor.is_whole = missing is not None
        rest = Rest(request, cursor, computed_after, missing)
        if self._advance(rest, request.num_computed_tokens, tables):
            self._fall_behind(rest)

    def _advance(
        self,
        rest: Rest,
        computed_before: int,
        tables: Callable[[], Sequence[Sequence[int]] | None] | None,
    ) -> bool:
        """Choose a request's next blocks; True if some are left. Without `tables` the pool has their places."""
        request, cursor, missing = rest.request, rest.cursor, rest.missing
        full_tokens = min(rest.computed, len(request.block_hashes) * self._grid.hash_tokens)
        found: Sequence[Sequence[int]] | None = None
        is_behind = False
        for group in self._attention:
            full = full_tokens // group.block_tokens
            computed = computed_before // group.block_tokens
            first = cursor.next_block.get(group.index, computed if missing is None else 0)
            cursor.next_block[group.index] = max(first, full)
            if first >= full or group.index in cursor.cut:
                continue
            chosen: Sequence[int] = range(first, full)
            if missing is not None:
                chosen = missing(group.index, first, full)
            fresh = max(0, full - max(first, computed))
            if len(chosen) > fresh + self._more:
                chosen, is_behind = chosen[: fresh + self._more], True
                cursor.next_block[group.index] = chosen[-1] + 1 if chosen else first
            self._more -= max(0, len(chosen) - fresh)
            if chosen and tables is not None and found is None:
                found = tables()
                if found is None:
                    return False
            if chosen:
                table = None if found is None else found[group.index]
                self._choose(request, group, chosen, table, cursor)
        cursor.due_tokens = min(
            ((cursor.next_block[of.index] + 1) * of.block_tokens for of in self._attention),
            default=ALL_TOKENS,
        )
        return is_behind

    def _fall_behind(self, rest: Rest) -> None:
        """Go on with a request's blocks in later steps, whether it still runs or not."""
        self._behind[id(rest.cursor)] = rest
        if len(self._behind) > limits.SAVE_RESTS_MAX:
            del self._behind[next(iter(self._behind))]
            self._counters.add("dropped_save_behind")

    def _catch_up(self) -> None:
        for key, rest in list(self._behind.items()):
            if self._more <= 0:
                return
            if not self._advance(rest, rest.computed, None):
                del self._behind[key]

    def _choose(
        self,
        request: Any,
        group: Group,
        indices: Sequence[int],
        table: Sequence[int] | None,
        cursor: SaveCursor,
    ) -> None:
        """Queue blocks for a slot; without a table the engine's cache has their places."""
        for index in indices:
            block_id = _UNKNOWN
            if table is not None:
                block_id = table[index] if index < len(table) else 0
            if block_id == 0:  # the null block: nothing was computed here, or no window reaches it
                continue
            if self.waiting >= self._waiting_max:
                self._lose((self._first_time or self._returning).popitem(last=False)[1])
            item = self._item(request, group, index, block_id)
            if self._saved.is_newer(item.group, item.block_hash, cursor.asked_at_s):
                continue
            self._wait(item, cursor)
            self._saw(request, group, (index,))
            self._stuck_at_s = None  # computing is not waiting for slots

    def _wait(self, item: SaveItem, cursor: SaveCursor) -> None:
        if not self.visits.again(item.group, item.block_hash) and not cursor.returns:
            cursor.fresh.add(item.group)
        is_returning = cursor.is_whole and item.group not in cursor.fresh
        step = self._step if item.block_id != _UNKNOWN else _UNKNOWN
        self._put(WaitingBlock(item, [cursor], step, is_returning))

    def _put(self, waiting: WaitingBlock, *, last: bool = True) -> None:
        """Queue a block, after or before others of its kind; one queued already may become a returning one."""
        key = (waiting.item.group, waiting.item.block_hash)
        known = self._returning.get(key) or self._first_time.get(key)
        if known is not None:
            waiting.cursors = [*known.cursors, *waiting.cursors][-limits.SAVE_SHARERS_MAX :]
            if waiting.is_returning and not known.is_returning:
                del self._first_time[key]
            waiting.is_returning |= known.is_returning
        queue = self._returning if waiting.is_returning else self._first_time
        queue[key] = waiting
        if not last:
            queue.move_to_end(key, last=False)

    def offer_state(
        self,
        request: Any,
        group_index: int,
        block_id: int,
        end_tokens: int,
        missing: Missing | None,
    ) -> bool:
        """Take a recurrent state that vLLM hands over in this step: block `block_id` holds it once the forward is done.

        States within a block are skipped and counted, because no boundary lies there. True where one is saved,
        or is held already.
        """
        group = self._states.get(group_index)
        if group is None or block_id == 0:
            return False
        if end_tokens % self._grid.step:
            self._counters.add("states_within_block")
            return False
        index = end_tokens // group.block_tokens - 1
        if index < 0 or end_tokens > len(request.block_hashes) * self._grid.hash_tokens:
            return False
        if missing is None or missing(group_index, index, index + 1):
            item = self._item(request, group, index, block_id)
            self._now.append(WaitingBlock(item, [SaveCursor()], self._step))
            self._counters.add("states_offered")
        return True

    def _item(self, request: Any, group: Group, index: int, block_id: int) -> SaveItem:
        block_hash, parent_hash, anchor = self._grid.names(request, group, index)
        return SaveItem(
            group=group.index,
            block_id=block_id,
            block_hash=block_hash,
            parent_hash=parent_hash,
            end_tokens=(index + 1) * group.block_tokens,
            tenant=tenant_of(request),
            anchor=anchor,
        )

    def next_step(
        self, computed: int = 0, *, is_asking: bool = False
    ) -> tuple[int, list[SaveItem]]:
        """Give this step's ticket and its share of the chosen blocks: every state, then blocks as slots are free.

        `computed`: tokens of this step; it may copy as much as it computes, so that saves keep up with long steps.
        `is_asking`: it asks the workers, so requests that have ended wait.
        `commit` follows, or `take_back`.
        """
        if computed:
            self._computed_at_s = time.monotonic()
        if self._behind and not is_asking:
            self._catch_up()
        self._more = limits.SAVE_ITEMS_PER_STEP_MAX
        if not self.waiting and not self._now:
            self._step += 1
            return self._ticket, []
        ticket = self._planned = StepTicket(self._world, [], [])
        states, self._now = self._now, []
        for waiting in states:
            self._hold(ticket, waiting, waiting.item.block_id)
        items = [waiting.item for waiting in states]
        room = max(limits.SAVE_BYTES_PER_STEP_MAX, computed * self.token_bytes)
        looks = max(limits.SAVE_ITEMS_PER_STEP_MAX, int(computed * self._token_blocks))
        looks = min(looks, limits.SAVE_ITEMS_PER_FRAME_MAX)
        looked_at = returning = 0
        now = time.monotonic()
        while (queue := self._returning or self._first_time) and looked_at < looks:
            if self._slots is not None and len(items) >= self._slots:
                break
            key, waiting = next(iter(queue.items()))
            block_bytes = self._block_bytes[waiting.item.group]
            if block_bytes > room and items:
                break
            del queue[key]
            looked_at += 1
            item = self._located(waiting)
            if item is None:
                self._lose(waiting)
                continue
            room -= block_bytes
            self._hold(ticket, waiting, item.block_id)
            self._saved.add(item.group, item.block_hash, now)
            items.append(item)
            returning += waiting.is_returning
        self._counters.add("saves_returning", returning)
        self._counters.add("saves_first_time", len(items) - len(states) - returning)
        self._step += 1
        if items:
            self._ticket += 1
            self._in_flight[self._ticket] = ticket
            if self._slots is not None:
                self._slots = max(0, self._slots - len(items))
        return self._ticket, items

    def commit(self) -> None:
        """Note that the workers get this step's share."""
        self._planned = StepTicket(0, [], [])

    def take_back(self) -> None:
        """Give back the references of a step that does not reach the workers."""
        planned = self._planned
        self.commit()
        self._in_flight = {n: of for n, of in self._in_flight.items() if of is not planned}
        if planned.block_ids:
            self._release(planned.block_ids)

    def _hold(self, ticket: StepTicket, waiting: WaitingBlock, block_id: int) -> None:
        self._pool.touch([self._pool.blocks[block_id]])
        ticket.block_ids.append(block_id)
        ticket.chosen.append(waiting)

    def _located(self, waiting: WaitingBlock) -> SaveItem | None:
        """Give the item with the place its block has now; None where the engine's cache does not hold it any more."""
        item = waiting.item
        if item.group in waiting.cursors[-1].cut:
            return None
        if waiting.step == self._step:
            return item
        found = self._pool.get_cached_block(item.block_hash, [item.group])
        if not found:
            return None
        block_id = int(found[0].block_id)
        return item if block_id == item.block_id else item.at(block_id)

    def _lose(self, waiting: WaitingBlock) -> None:
        """Count a block that vLLM evicted; where all earlier blocks are needed, later ones are not saved.

        In a window's group that is usual, because no restore of the whole prompt needs the blocks before the window.
        """
        if self._tails[waiting.item.group] == 0:
            self._counters.add("dropped_save_evicted")
            self._counters.add("returning_evicted", int(waiting.is_returning))
            for cursor in waiting.cursors:
                cursor.cut.add(waiting.item.group)
        else:
            self._counters.add("dropped_save_out_of_window")

    def hear(self, receipts: StepReceipts) -> None:
        """Take the workers' receipts: tickets done, items refused, slots left."""
        if receipts.slots is not None:
            if receipts.slots:
                self._stuck_at_s = None
            self._slots = receipts.slots
        # A ticket is closed when its copies have ended, which may be steps later.
        for number, refused in receipts.refused.items():
            if (ticket := self._in_flight.get(number)) is not None:
                ticket.refused = max(ticket.refused, refused)
        while receipts.tickets:  # taken out, so that none counts twice
            self._acknowledge(*receipts.tickets.popitem())

    def _acknowledge(self, number: int, ranks: int) -> None:
        ticket = self._in_flight.get(number)
        if ticket is None:
            return
        ticket.ranks -= ranks
        if ticket.ranks > 0:
            return
        del self._in_flight[number]
        self._stuck_at_s = None
        self._release(ticket.block_ids)
        back = ticket.chosen[len(ticket.chosen) - ticket.refused :]
        states = [waiting for waiting in back if waiting.item.group in self._states]
        if states:  # handed over in that step only
            self._counters.add("dropped_save_no_slot", len(states))
        for waiting in reversed(back):
            if waiting.item.group not in self._states:
                self._saved.drop(waiting.item.group, waiting.item.block_hash)
                self._put(waiting, last=False)

    def forget(self, why: str) -> None:
        """Drop and count waiting blocks, because the engine dropped them, or the weights that computed them."""
        self._counters.add(f"dropped_save_{why}", self.waiting)
        self._returning.clear()
        self._first_time.clear()
        self._behind.clear()
        self._saved.clear()

    @property
    def waiting(self) -> int:
        return len(self._returning) + len(self._first_time)

    @property
    def is_saving(self) -> bool:
        """Tell whether blocks are left that no rank has copied yet; from any thread."""
        return bool(self.waiting or self._behind or self._now or self._in_flight)

    @property
    def holds_blocks(self) -> bool:
        """Tell whether our references alone keep a block from reuse."""
        ours = Counter(chain.from_iterable(of.block_ids for of in self._in_flight.values()))
        blocks = self._pool.blocks if ours else ()
        return any(blocks[block_id].ref_cnt <= count for block_id, count in ours.items())

    @property
    def has_work(self) -> bool:
        """Tell whether steps without tokens would save something: False when no slot came free for some time."""
        if self._now or self._in_flight:
            return True
        if not self.waiting and not self._behind:
            return False
        now = time.monotonic()
        if now - self._computed_at_s > limits.SAVE_IDLE_S:
            self.forget("idle")
            return False
        if self._slots != 0:
            return True
        if self._stuck_at_s is None:
            self._stuck_at_s = now
        return now - self._stuck_at_s <= limits.SAVE_STALL_S

    def _release(self, block_ids: list[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[block_id] for block_id in reversed(block_ids)])
