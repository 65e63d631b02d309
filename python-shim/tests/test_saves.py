"""Saves: each full block once, only computed ones, referenced exactly until every rank has copied it."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import SaveItem, StepReceipts
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.cursors import SaveCursor
from tierkv.connectors.vllm.save.saves import SavePlanner

from .support.engine import Pool, Request, make_group, make_state
from .support.scheduler import missing_where

TABLE = list(range(1, 20))


class Bench:
    """A planner with its pool and counters."""

    def __init__(
        self,
        *,
        group: Group | None = None,
        ratio: int = 1,
        world: int = 1,
        blocks: int = 800,
        states: tuple[Group, ...] = (),
    ) -> None:
        self.pool = Pool(blocks)
        self.counters = Counters()
        made = group or make_group()
        grid = Grid([made, *states], made.block_tokens // ratio)
        self.planner = SavePlanner(grid, world, blocks, self.counters)
        self.planner.bind_pool(self.pool)
        self.cursor = SaveCursor()

    def offer(
        self,
        request: Request,
        computed_after: int,
        *,
        holds: Callable[[int, int], bool] | None = lambda _, __: False,
        table: list[int] | None = None,
    ) -> list[SaveItem]:
        self.choose(request, computed_after, holds=holds, table=table)
        return self.planner.next_step()[1]

    def choose(
        self,
        request: Request,
        computed_after: int,
        *,
        holds: Callable[[int, int], bool] | None = lambda _, __: False,
        table: list[int] | None = None,
    ) -> None:
        """Offer and keep the engine's own cache as vLLM does: it names a block in the step that computes it."""
        block_ids = TABLE if table is None else table
        for block_hash, block_id in zip(request.block_hashes, block_ids, strict=False):
            self.pool.cached[block_hash] = block_id
        missing = missing_where(holds)
        self.planner.offer(request, self.cursor, computed_after, missing, lambda: [block_ids])

    def works(self) -> bool:
        return self.planner.has_work

    def places(self) -> list[int]:
        return [item.block_id for item in self.planner.next_step()[1]]

    def hear(
        self, ticket: int = 0, *, ranks: int = 1, refused: int = 0, slots: int | None = None
    ) -> None:
        tickets = Counter({ticket: ranks} if ticket else {})
        self.planner.hear(StepReceipts(tickets, {ticket: refused} if refused else {}, slots))


def test_a_block_is_offered_in_the_step_that_fills_it_and_never_again() -> None:
    bench, request = Bench(), Request("r", 16)
    assert [item.block_id for item in bench.offer(request, 7)] == [1]
    assert [item.block_id for item in bench.offer(request, 8)] == [2]
    assert bench.offer(request, 9) == []
    assert [item.block_id for item in bench.offer(request, 16)] == [3, 4]
    assert bench.offer(request, 16) == []


def test_saving_goes_on_from_the_choice_of_a_block_until_every_rank_has_copied_it() -> None:
    bench = Bench(world=2)
    seen = [bench.planner.is_saving]
    bench.choose(Request("r", 16), 16)
    seen.append(bench.planner.is_saving)
    ticket, _ = bench.planner.next_step()
    seen.append(bench.planner.is_saving)
    for _ in range(2):
        bench.hear(ticket)
        seen.append(bench.planner.is_saving)
    assert seen == [False, True, True, True, False]


def test_an_item_names_its_hash_its_parent_and_where_it_ends() -> None:
    bench, request = Bench(), Request("r", 8)
    first, second = bench.offer(request, 8)
    assert (first.block_hash, first.parent_hash) == (request.block_hashes[0], bytes(32))
    assert (second.block_hash, second.parent_hash) == tuple(reversed(request.block_hashes[:2]))
    assert (first.end_tokens, second.end_tokens) == (4, 8)


def test_with_finer_hashes_a_block_is_named_by_the_last_hash_of_its_tokens() -> None:
    bench = Bench(group=make_group(tokens=8), ratio=2)
    request = Request("r", 16)  # four hashes of four tokens: two blocks of eight
    items = bench.offer(request, 16)
    assert [item.block_hash for item in items] == [request.block_hashes[1], request.block_hashes[3]]
    assert [item.parent_hash for item in items] == [bytes(32), request.block_hashes[1]]
    assert [item.end_tokens for item in items] == [8, 16]


def test_what_the_vaults_hold_is_not_offered() -> None:
    bench = Bench()
    items = bench.offer(Request("r", 16), 16, holds=lambda _, index: index < 3)
    assert [item.block_id for item in items] == [4]


def test_without_an_answer_only_what_this_request_computes_is_offered() -> None:
    bench, request = Bench(), Request("r", 16, num_computed_tokens=8)
    assert [item.block_id for item in bench.offer(request, 16, holds=None)] == [3, 4]


def test_the_engines_own_hits_are_offered_when_the_vaults_lack_them() -> None:
    bench, request = Bench(), Request("r", 16, num_computed_tokens=8)
    assert [item.block_id for item in bench.offer(request, 16)] == [1, 2, 3, 4]


def test_a_block_without_a_hash_waits_until_it_has_one() -> None:
    bench, request = Bench(), Request("r", 8)
    hashes = request.block_hashes
    request.block_hashes = hashes[:1]
    assert len(bench.offer(request, 8)) == 1
    request.block_hashes = hashes
    assert [item.block_id for item in bench.offer(request, 8)] == [2]


def test_null_and_missing_blocks_are_passed_over() -> None:
    bench = Bench()
    assert [item.block_id for item in bench.offer(Request("r", 16), 16, table=[0, 5])] == [5]


def test_references_go_back_when_every_rank_has_copied_tail_first() -> None:
    bench = Bench(world=2)
    bench.choose(Request("r", 12), 12)
    ticket, items = bench.planner.next_step()
    assert bench.pool.referenced == [item.block_id for item in items] == [1, 2, 3]
    bench.hear(ticket)
    assert bench.pool.referenced == [1, 2, 3]
    bench.hear(ticket)
    assert bench.pool.referenced == []
    assert bench.pool.freed == [3, 2, 1]
    assert not bench.planner.has_work
    bench.hear(ticket)  # a repeated receipt must not release twice


def half_a_step(*, tail: int = 0) -> Group:
    """Two blocks of this group are all a step may copy."""
    side = limits.SAVE_BYTES_PER_STEP_MAX // 128
    group = make_group(tokens=4, heads=1, dims=(side, side), tail=tail)
    assert group.block_bytes * 2 == limits.SAVE_BYTES_PER_STEP_MAX
    return group


def test_a_step_copies_at_most_the_cap_and_the_rest_follows() -> None:
    bench = Bench(group=half_a_step())
    bench.choose(Request("r", 20), 20)
    assert [bench.places() for _ in range(4)] == [[1, 2], [3, 4], [5], []]


def test_a_step_may_copy_as_much_as_it_computes() -> None:
    group = half_a_step()
    bench = Bench(group=group)
    bench.choose(Request("r", 20), 20)
    computed = 3 * group.block_tokens
    assert [item.block_id for item in bench.planner.next_step(computed)[1]] == [1, 2, 3]
    assert bench.places() == [4, 5]


def test_what_waits_holds_no_reference_and_is_found_where_it_lies_by_then() -> None:
    bench, request = Bench(group=half_a_step()), Request("r", 20)
    bench.choose(request, 20)
    assert bench.places() == [1, 2]
    assert bench.pool.referenced == [1, 2]
    bench.pool.cached[request.block_hashes[2]] = 17  # computed again by another request
    assert bench.places() == [17, 4]


def test_no_more_is_chosen_than_slots_are_free() -> None:
    bench = Bench()
    bench.hear(slots=2)
    bench.choose(Request("r", 20), 20)
    assert bench.places() == [1, 2]
    assert bench.places() == []
    bench.hear(1, slots=0)
    assert bench.places() == []
    assert bench.pool.referenced == []
    bench.hear(slots=9)
    assert bench.places() == [3, 4, 5]


def test_what_a_rank_refused_comes_again_before_what_is_behind_it() -> None:
    bench = Bench(group=half_a_step(), world=2)
    bench.choose(Request("r", 20), 20)
    ticket, _ = bench.planner.next_step()
    bench.hear(ticket)
    bench.hear(ticket, refused=1)
    assert bench.pool.referenced == []
    assert bench.places() == [2, 3]


def test_f32_behind_a_block_that_was_lost_nothing_of_the_prompt_is_saved() -> None:
    bench, request = Bench(group=half_a_step()), Request("r", 24)
    bench.choose(request, 20)
    assert bench.places() == [1, 2]
    del bench.pool.cached[request.block_hashes[2]]
    assert bench.places() == []
    assert bench.counters.get("dropped_save_evicted") == 3
    assert bench.offer(request, 24) == []
    assert not bench.planner.holds_blocks or bench.pool.referenced == [1, 2]


def test_in_a_window_a_lost_block_costs_only_itself() -> None:
    bench, request = Bench(group=half_a_step(tail=1)), Request("r", 20)
    bench.choose(request, 20)
    assert bench.places() == [1, 2]
    del bench.pool.cached[request.block_hashes[2]]
    assert bench.places() == [4, 5]
    assert bench.counters.get("dropped_save_out_of_window") == 1
    assert bench.counters.get("dropped_save_evicted") == 0


def test_f32_no_more_waits_than_the_engines_cache_can_hold() -> None:
    bench = Bench(blocks=4)
    bench.pool = Pool()
    bench.planner.bind_pool(bench.pool)
    bench.choose(Request("r", 24), 24)
    assert bench.counters.get("dropped_save_evicted") == 2
    assert bench.places() == []  # the first ones were lost


def test_what_waits_outlives_its_request_until_the_cache_is_reset() -> None:
    bench = Bench(group=half_a_step())
    bench.choose(Request("r", 20), 20)
    bench.hear(bench.planner.next_step()[0], slots=4)
    assert bench.works()
    bench.planner.forget("cache_reset")
    assert not bench.works()
    assert bench.counters.get("dropped_save_cache_reset") == 3
    assert bench.places() == []


def test_an_idle_engine_steps_for_saves_only_while_slots_come_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(group=half_a_step())
    bench.choose(Request("r", 20), 20)
    bench.hear(bench.planner.next_step()[0], slots=0)
    assert bench.works()
    monkeypatch.setattr(limits, "SAVE_STALL_S", -1.0)
    assert not bench.works()
    bench.hear(slots=1)
    assert bench.works()


def paused_s(bench: Bench, clock: list[float], seconds_per_slot: float) -> float:
    """How long a pause waits: vLLM steps while there is work, and a slow vault frees a slot now and then."""
    began = clock[0]
    for step in range(1, 1000):
        if not bench.works():
            break
        number, items = bench.planner.next_step()
        clock[0] += seconds_per_slot
        bench.hear(number if items else 0, slots=step % 2)
    return clock[0] - began


def test_a_pause_does_not_wait_for_a_slow_vault(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bench = Bench()
    bench.choose(Request("r", 200), 200, table=list(range(1, 60)))
    bench.planner.hear(StepReceipts(slots=0))
    bench.planner.next_step(computed=200)
    waiting = bench.planner.waiting
    assert waiting == 50
    assert paused_s(bench, clock, 1.0) <= limits.SAVE_IDLE_S + 2.0
    dropped = bench.counters.get("dropped_save_idle")
    assert waiting - limits.SAVE_IDLE_S <= dropped < waiting
    assert bench.planner.waiting == 0
    # A step with tokens begins the time anew.
    bench.cursor = SaveCursor()
    bench.choose(Request("t", 40, "t"), 40, table=list(range(200, 220)))
    bench.planner.next_step(computed=40)
    assert bench.works()


def test_a_long_step_is_no_wait_for_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("tierkv.connectors.vllm.save.saves.time.monotonic", lambda: clock[0])
    bench = Bench(group=half_a_step())
    request = Request("r", 20)
    bench.choose(request, 12)
    bench.hear(bench.planner.next_step()[0], slots=0)
    assert bench.works()
    bench.choose(request, 20)
    clock[0] += 2 * limits.SAVE_STALL_S  # that step computes
    bench.planner.next_step()
    bench.hear(slots=0)
    assert bench.works()
    clock[0] += 2 * limits.SAVE_STALL_S
    assert not bench.works()


def hybrid() -> Bench:
    return Bench(states=(make_state(index=1), make_state(index=2)))


def test_states_are_saved_only_where_they_are_handed_over() -> None:
    bench, request = hybrid(), Request("r", 16)
    assert [item.group for item in bench.offer(request, 16)] == [0, 0, 0, 0]
    bench.planner.offer_state(request, 1, 9, 8, None)
    bench.planner.offer_state(request, 2, 8, 8, None)
    ticket, (first, second) = bench.planner.next_step()
    assert [(i.group, i.block_id, i.end_tokens) for i in (first, second)] == [(1, 9, 8), (2, 8, 8)]
    assert first.block_hash == second.block_hash == request.block_hashes[1]
    assert first.parent_hash == request.block_hashes[0]
    bench.hear(ticket - 1)
    assert bench.pool.referenced == [8, 9]
    bench.hear(ticket)
    assert bench.pool.referenced == []


def test_a_state_goes_before_blocks_that_wait() -> None:
    bench = Bench(group=half_a_step(), states=(make_state(),))
    request = Request("r", 20)
    bench.choose(request, 20)
    bench.planner.next_step()
    bench.planner.offer_state(request, 1, 19, 20, None)
    assert bench.places() == [19, 3, 4]


def test_a_state_without_a_slot_is_dropped_and_counted() -> None:
    bench = hybrid()
    bench.planner.offer_state(Request("r", 16), 1, 9, 8, None)
    ticket, _ = bench.planner.next_step()
    bench.hear(ticket, refused=1, slots=0)
    assert bench.counters.get("dropped_save_no_slot") == 1
    assert not bench.planner.has_work


def test_blocks_refused_steps_before_their_ticket_is_closed_wait_again() -> None:
    bench = Bench()
    bench.choose(Request("r", 16), 16)
    ticket, items = bench.planner.next_step()
    assert len(items) == 4
    bench.planner.hear(StepReceipts(Counter(), {ticket: 2}, 0))  # copies on a GPU run on
    assert bench.places() == []
    bench.hear(ticket, slots=2)
    assert bench.places() == [items[2].block_id, items[3].block_id]


def test_states_that_no_set_of_blocks_ends_at_or_that_are_held_are_passed_over() -> None:
    bench, request = hybrid(), Request("r", 16)
    bench.planner.offer_state(request, 1, 9, 6, None)  # within a block
    bench.planner.offer_state(request, 1, 9, 20, None)  # beyond what has a hash
    bench.planner.offer_state(request, 1, 0, 8, None)  # vLLM's null block
    bench.planner.offer_state(request, 0, 9, 8, None)  # attention
    bench.planner.offer_state(request, 1, 9, 8, lambda *_: [])
    assert bench.planner.next_step()[1] == []
    assert not bench.planner.has_work
    assert bench.counters.get("states_within_block") == 1


def resumed(bench: Bench, own: int, blocks: int) -> Request:
    """A request whose first blocks the engine's cache holds, and nobody else; the step computes the others."""
    request = Request("r", blocks * 4)
    request.num_computed_tokens = own * 4
    bench.choose(request, blocks * 4, table=list(range(1, blocks + 1)))
    return request


def test_what_was_cached_before_is_offered_in_shares_prefix_first_also_after_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SAVE_ITEMS_PER_STEP_MAX", 3)
    bench = Bench()
    resumed(bench, 10, 12)
    shares: list[list[int]] = []
    while bench.works() and len(shares) < 12:
        ticket, items = bench.planner.next_step(8)
        shares.append([item.block_id for item in items])
        bench.hear(ticket)
    assert shares[0] == [1, 2, 3]
    assert [place for share in shares for place in share] == list(range(1, 13))
    assert max(map(len, shares)) == 3


def test_a_request_that_goes_on_takes_its_next_share_with_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SAVE_ITEMS_PER_STEP_MAX", 3)
    bench = Bench()
    request = resumed(bench, 7, 8)
    assert bench.places() == [1, 2, 3]
    request.num_computed_tokens = 32
    assert bench.cursor.due_tokens <= 33
    bench.choose(request, 33, table=list(range(1, 10)))
    assert bench.places() == [4, 5, 6]
    assert sorted(bench.places() + bench.places()) == [7, 8]
    assert bench.places() == []


def test_what_is_left_of_requests_is_bounded_and_goes_with_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SAVE_ITEMS_PER_STEP_MAX", 1)
    monkeypatch.setattr(limits, "SAVE_RESTS_MAX", 2)
    bench = Bench()
    for seed in "abc":
        bench.cursor = SaveCursor()
        bench.planner.offer(
            Request(seed, 16, seed, 16),
            bench.cursor,
            16,
            lambda *at: range(*at[1:]),
            lambda: [TABLE],
        )
    assert bench.counters.get("dropped_save_behind") == 1
    bench.planner.forget("cache_reset")
    assert not bench.works()


def test_only_a_block_that_nobody_else_holds_is_worth_waiting_for() -> None:
    bench = Bench()
    request = Request("r", 8)
    running = [bench.pool.blocks[block_id] for block_id in TABLE[:2]]
    bench.pool.touch(running)
    bench.offer(request, 8)
    seen = [bench.planner.holds_blocks]  # the request holds them, too
    bench.pool.free_blocks(running[1:])
    seen.append(bench.planner.holds_blocks)
    bench.hear(1)
    seen.append(bench.planner.holds_blocks)
    assert seen == [False, True, False]


def test_what_was_saved_since_a_look_up_is_not_saved_again() -> None:
    bench = Bench()
    requests = [Request(name, 8) for name in "abc"]
    bench.cursor = early = SaveCursor()
    late = SaveCursor()
    assert len(bench.offer(requests[0], 8)) == 2
    bench.cursor = late
    assert bench.offer(requests[1], 8) == []
    bench.hear(1)
    bench.cursor = SaveCursor(
        asked_at_s=early.asked_at_s + 1e6
    )  # its look-up says that it was dropped since
    assert len(bench.offer(requests[2], 8)) == 2


def test_what_found_no_slot_is_offered_again() -> None:
    bench = Bench()
    first, second = SaveCursor(), SaveCursor()
    bench.cursor = first
    bench.offer(Request("a", 8), 8)
    bench.hear(1, refused=2, slots=0)
    bench.cursor = second
    bench.choose(Request("b", 8), 8)
    bench.hear(slots=2)
    assert len(bench.planner.next_step()[1]) == 2
