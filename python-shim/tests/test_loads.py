"""Admitted loads: parts of bounded size in order, the last one marked, every rank's slots beside its block."""

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import LoadPart
from tierkv.connectors.vllm.requests.plans import Plan
from tierkv.connectors.vllm.restore.loads import NO_ARENA, LoadQueue


def make_plan(req_id: str, shards: int = 1) -> Plan:
    plan = Plan(
        plan_id=1,
        req_id=req_id,
        groups={},
        shards=shards,
        connection=1,
        progress_at_s=0.0,
    )
    plan.arena = 3
    return plan


def drain(queue: LoadQueue) -> list[list[LoadPart]]:
    steps = []
    while parts := queue.next_parts():
        steps.append(parts)
        assert len(steps) < 100
    return steps


def test_a_step_may_load_as_much_as_it_computes() -> None:
    most = limits.LOAD_BYTES_PER_STEP_MAX
    queue = LoadQueue({0: most // 4})
    queue.add("a", make_plan("a"), [(0, list(range(1, 11)), list(range(101, 111)))])
    assert [len(part.block_ids) for part in queue.next_parts(2 * most)] == [8]
    assert [len(part.block_ids) for part in queue.next_parts(most // 2)] == [2]


def test_a_load_above_the_cap_takes_several_steps_and_ends_once() -> None:
    queue = LoadQueue({0: limits.LOAD_BYTES_PER_STEP_MAX // 4, 1: 1})
    queue.add("a", make_plan("a"), [(0, list(range(1, 11)), list(range(101, 111)))])
    steps = drain(queue)
    assert [len(part.block_ids) for (part,) in steps] == [4, 4, 2]
    assert [block for (part,) in steps for block in part.block_ids] == list(range(1, 11))
    assert [slot for (part,) in steps for slot in part.slots] == list(range(101, 111))
    assert [part.last for (part,) in steps] == [False, False, True]


def test_small_loads_share_a_step_in_the_order_of_admission() -> None:
    queue = LoadQueue({0: limits.LOAD_BYTES_PER_STEP_MAX // 4, 1: 1})
    queue.add("a", make_plan("a"), [(0, [1, 2, 3], [11, 12, 13])])
    queue.add("b", make_plan("b"), [(0, [4, 5, 6], [14, 15, 16])])
    steps = drain(queue)
    assert [[(p.req_id, p.block_ids, p.last) for p in parts] for parts in steps] == [
        [("a", [1, 2, 3], True), ("b", [4], False)],
        [("b", [5, 6], True)],
    ]


def test_short_loads_pass_a_long_one_for_no_longer_than_it_takes_alone() -> None:
    queue = LoadQueue({0: limits.LOAD_BYTES_PER_STEP_MAX})  # a block a step
    queue.add("long", make_plan("long"), [(0, [1, 2, 3], [11, 12, 13])])
    loaded = []
    for number in range(6):
        queue.add("short", make_plan("short"), [(0, [20 + number], [40 + number])])
        loaded += [part.req_id for part in queue.next_parts()]
    assert loaded == ["short", "short", "long", "long", "long", "short"]


def test_a_block_larger_than_the_cap_still_moves() -> None:
    queue = LoadQueue({0: limits.LOAD_BYTES_PER_STEP_MAX * 3, 1: 1})
    queue.add("a", make_plan("a"), [(0, [1, 2], [11, 12])])
    assert [len(parts[0].block_ids) for parts in drain(queue)] == [1, 1]


def test_slots_of_all_ranks_travel_with_their_block() -> None:
    queue = LoadQueue({0: 1, 1: 1})
    queue.add("a", make_plan("a", shards=2), [(0, [1, 2], [10, 20, 11, 21])])
    ((part,),) = drain(queue)
    assert part.slots[0::2] == [10, 11]
    assert part.slots[1::2] == [20, 21]


def test_the_same_request_may_be_admitted_again_after_its_report() -> None:
    queue = LoadQueue({0: 1, 1: 1})
    first, second = make_plan("a"), make_plan("a")
    queue.add(first.req_id, first, [(0, [1], [11])])
    drain(queue)
    assert queue.is_loading("a")
    assert queue.finish("a") is first
    assert not queue.is_loading("a")
    queue.add(second.req_id, second, [(0, [2], [12])])
    drain(queue)
    assert queue.finish("a") is second
    assert queue.finish("a") is None


def test_groups_of_a_load_follow_each_other_and_only_the_last_part_ends_it() -> None:
    queue = LoadQueue(
        {0: limits.LOAD_BYTES_PER_STEP_MAX // 2, 1: limits.LOAD_BYTES_PER_STEP_MAX // 4}
    )
    queue.add("a", make_plan("a"), [(0, [1, 2, 3], [11, 12, 13]), (1, [9], [20]), (2, [], [])])
    assert [[(p.group, p.block_ids, p.last) for p in parts] for parts in drain(queue)] == [
        [(0, [1, 2], False)],
        [(0, [3], False), (1, [9], True)],
    ]


def test_a_load_that_must_not_happen_names_no_arena() -> None:
    queue = LoadQueue({0: 1})
    queue.add_failed("a", 0, [1, 2], make_plan("a"))
    ((part,),) = drain(queue)
    assert (part.arena, part.block_ids, part.last) == (NO_ARENA, [1, 2], True)
    assert queue.finish("a") is not None


def test_an_admission_that_needs_no_block_is_reported_once() -> None:
    queue = LoadQueue({0: 1})
    queue.add("a", make_plan("a"), [(0, [], [])])
    ((part,),) = drain(queue)
    assert (part.block_ids, part.slots, part.last) == ([], [], True)
    assert queue.finish("a") is not None
