"""Saves: each full block once, only computed ones, referenced exactly until every rank has copied it."""

from collections.abc import Callable

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.grid import Grid
from tierkv.connectors.vllm.metadata import SaveItem
from tierkv.connectors.vllm.saves import SaveCursor, SavePlanner
from tierkv.connectors.vllm.specs import Group

from .support.engine import Pool, Request, make_group, make_state

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
        block_ids = TABLE if table is None else table
        self.planner.offer(request, self.cursor, computed_after, holds, lambda: [block_ids])
        return self.planner.next_step()[1]


def test_a_block_is_offered_in_the_step_that_fills_it_and_never_again() -> None:
    bench, request = Bench(), Request("r", 16)
    assert [item.block_id for item in bench.offer(request, 7)] == [1]
    assert [item.block_id for item in bench.offer(request, 8)] == [2]
    assert bench.offer(request, 9) == []
    assert [item.block_id for item in bench.offer(request, 16)] == [3, 4]
    assert bench.offer(request, 16) == []


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
    bench.planner.offer(Request("r", 12), bench.cursor, 12, None, lambda: [TABLE])
    ticket, items = bench.planner.next_step()
    assert bench.pool.referenced == [item.block_id for item in items] == [1, 2, 3]
    bench.planner.acknowledge(ticket, 1)
    assert bench.pool.referenced == [1, 2, 3]
    bench.planner.acknowledge(ticket, 1)
    assert bench.pool.referenced == []
    assert bench.pool.freed == [3, 2, 1]
    assert not bench.planner.has_work
    bench.planner.acknowledge(ticket, 1)  # a repeated receipt must not release twice


def half_a_step() -> Group:
    """Two blocks of this group are all a step may copy."""
    group = make_group(tokens=4, heads=1, dims=(limits.SAVE_BYTES_PER_STEP_MAX // 128,) * 2)
    assert group.block_bytes * 2 == limits.SAVE_BYTES_PER_STEP_MAX
    return group


def test_a_step_copies_at_most_the_cap_and_the_rest_follows() -> None:
    bench = Bench(group=half_a_step())
    bench.planner.offer(Request("r", 20), bench.cursor, 20, None, lambda: [TABLE])
    steps = [[item.block_id for item in bench.planner.next_step()[1]] for _ in range(4)]
    assert steps == [[1, 2], [3, 4], [5], []]


def test_f32_a_full_backlog_drops_and_counts_and_holds_no_reference_for_it() -> None:
    bench = Bench(group=half_a_step(), blocks=8)  # 8 / SAVE_BACKLOG_BLOCKS_FRACTION = 1 put off
    assert [item.block_id for item in bench.offer(Request("r", 20), 20)] == [1, 2]
    assert bench.counters.get("dropped_save_backlog") == 2
    assert bench.pool.referenced == [1, 2, 3]


def test_what_is_copied_in_its_own_step_is_no_backlog() -> None:
    bench = Bench(blocks=8)
    assert [item.block_id for item in bench.offer(Request("r", 24), 24)] == [1, 2, 3, 4, 5, 6]


def test_a_finished_request_drops_only_its_own_waiting_blocks() -> None:
    bench = Bench()
    other = SaveCursor()
    bench.planner.offer(Request("a", 8), bench.cursor, 8, None, lambda: [[1, 2]])
    bench.planner.offer(Request("b", 8), other, 8, None, lambda: [[3, 4]])
    bench.planner.drop_request("a")
    assert bench.pool.referenced == [3, 4]
    assert bench.counters.get("dropped_save_engine_idle") == 2
    assert [item.block_id for item in bench.planner.next_step()[1]] == [3, 4]


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
    bench.planner.acknowledge(ticket - 1, 1)
    assert bench.pool.referenced == [8, 9]
    bench.planner.acknowledge(ticket, 1)
    assert bench.pool.referenced == []


def test_a_state_goes_before_blocks_that_wait() -> None:
    bench = Bench(group=half_a_step(), states=(make_state(),))
    request = Request("r", 20)
    bench.planner.offer(request, bench.cursor, 20, None, lambda: [TABLE])
    bench.planner.next_step()
    bench.planner.offer_state(request, 1, 19, 20, None)
    assert [item.block_id for item in bench.planner.next_step()[1]] == [19, 3, 4]


def test_states_that_no_set_of_blocks_ends_at_or_that_are_held_are_passed_over() -> None:
    bench, request = hybrid(), Request("r", 16)
    bench.planner.offer_state(request, 1, 9, 6, None)  # within a block
    bench.planner.offer_state(request, 1, 9, 20, None)  # beyond what has a hash
    bench.planner.offer_state(request, 1, 0, 8, None)  # vLLM's null block
    bench.planner.offer_state(request, 0, 9, 8, None)  # attention
    bench.planner.offer_state(request, 1, 9, 8, lambda group, index: (group, index) == (1, 1))
    assert bench.planner.next_step()[1] == []
    assert not bench.planner.has_work
    assert bench.counters.get("states_within_block") == 1
