"""Fetch plans: blocks without holes, progress of dead plans ignored, slots given back exactly once."""

import struct
import time
from dataclasses import replace

import pytest
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.requests.plan_group import LoadMismatchError, PlanGroup
from tierkv.connectors.vllm.requests.plans import Plan, PlanBook

from .support.engine import chain, make_group, make_state

HASHES = chain("a", 10)
GROUP = make_group()
#: Block ids of a request: 1, 2, 3, ...
TABLE = list(range(1, 20))


def slots(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


class Wire:
    """Takes the frames a book sends."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.is_up = True

    def send(self, frame: Frame) -> bool:
        if self.is_up:
            self.frames.append(frame)
        return self.is_up

    def of(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["t"] == kind]


def make_book(shards: int = 1) -> tuple[PlanBook, Wire]:
    wire = Wire()
    book = PlanBook(wire.send, shards)
    book.opened()
    book.on_frame({"t": "restore", "arena": 5, "on": True})
    return book, wire


def opened(book: PlanBook, req: str = "r", first: int = 0) -> Plan:
    plan = book.open(req, [(GROUP, HASHES)], first * 4)
    assert plan is not None
    return plan


def only(plan: Plan) -> PlanGroup:
    (part,) = plan.groups.values()
    return part


def place(book: PlanBook, plan: Plan, first: int, *numbers: int, local: int = 0) -> None:
    frame = {"t": "placed", "req": plan.req_id, "plan": plan.plan_id, "group": 0}
    book.on_frame({**frame, "first": first, "slots": slots(*numbers), "local": local})


def done(book: PlanBook, plan: Plan, reason: str = "complete") -> None:
    book.on_frame({"t": "done", "req": plan.req_id, "plan": plan.plan_id, "reason": reason})


def test_a_prefetch_names_the_tenant_where_there_is_one() -> None:
    book, wire = make_book()
    assert book.open("r", [(GROUP, HASHES)], 0, {"tenant": 7}) is not None
    assert [frame["tenant"] for frame in wire.of("prefetch")] == [7]


def test_a_prefetch_names_all_hashes_and_the_first_block_to_fetch() -> None:
    book, wire = make_book()
    plan = opened(book, first=3)
    groups = [{"group": 0, "class": "kv", "hashes": b"".join(HASHES), "from": 3}]
    assert wire.of("prefetch") == [
        {"t": "prefetch", "req": "r", "plan": plan.plan_id, "groups": groups}
    ]


def test_placed_blocks_are_ready_from_any_block_they_cover() -> None:
    book, _ = make_book()
    plan = opened(book, first=2)
    place(book, plan, 2, 20, 21)
    place(book, plan, 4, 22)
    assert [plan.ready_from(start * 4) for start in range(7)] == [0, 0, 12, 8, 4, 0, 0]
    assert plan.blocks_from(12, 8, [TABLE]) == [(0, [4, 5], [21, 22])]
    assert plan.arena == 5


def test_a_block_has_one_slot_per_rank() -> None:
    book, _ = make_book(shards=2)
    plan = opened(book)
    place(book, plan, 0, 10, 11, 12, 13)
    assert plan.ready_from(0) == 8
    assert plan.blocks_from(4, 4, [TABLE]) == [(0, [2], [12, 13])]
    place(book, plan, 2, 14)  # half a block
    assert plan.done_reason == "out_of_order"
    assert plan.ready_from(0) == 8


@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_hole_or_a_repeat_ends_the_plan_where_it_was(first: int) -> None:
    book, _ = make_book()
    plan = opened(book)
    place(book, plan, 0, 1, 2, 3)
    place(book, plan, first, 9)
    assert (only(plan).placed, plan.is_done) == ([1, 2, 3], True)


def test_a_block_before_the_first_that_is_placed_has_no_slot() -> None:
    part = PlanGroup(make_group(tail=4), first=0, count=8, shards=1)
    assert part.place(4, [20, 21, 22, 23], 0, is_plain=False)
    assert [part.slots_of(index) for index in (4, 7, 8)] == [[20], [23], []]
    with pytest.raises(LoadMismatchError, match="block 1, which is not placed"):
        part.blocks(4, 8, TABLE)


def test_slots_of_another_arena_never_join_a_plan() -> None:
    book, _ = make_book()
    plan = opened(book)
    place(book, plan, 0, 1)
    book.on_frame({"t": "restore", "arena": 6, "on": True})
    place(book, plan, 1, 1)
    assert (plan.arena, only(plan).placed) == (5, [1])


def test_a_plan_is_done_by_word_or_when_all_is_placed() -> None:
    book, _ = make_book()
    by_word, by_count = opened(book, "a"), opened(book, "b", first=9)
    assert [plan.is_done for plan in (by_word, by_count)] == [False, False]
    done(book, by_word, "vault_down")
    place(book, by_count, 9, 1)
    assert [plan.is_done for plan in (by_word, by_count)] == [True, True]


def test_held_bits_are_read_least_significant_first_and_never_past_the_end() -> None:
    book, _ = make_book()
    plan = opened(book)
    groups = [{"group": 0, "held": bytes([0b0000_0101, 0b1111_1111])}]
    book.on_frame({"t": "held", "req": "r", "plan": plan.plan_id, "groups": groups, "tokens": 0})
    assert [index for index in range(16) if only(plan).holds(index)] == [0, 2, 8, 9]
    assert list(plan.missing(0, 1, 12)) == [1, 3, 4, 5, 6, 7, 10, 11]
    assert list(plan.missing(0, 8, 10)) == []
    assert list(plan.missing(0, 8, 18)) == list(range(10, 18))  # also those that were not asked for
    assert list(plan.missing(0, 9, 9)) == []


def test_a_second_plan_of_a_request_releases_the_first_and_ignores_its_late_frames() -> None:
    book, wire = make_book()
    old = opened(book)
    new = opened(book)
    assert [frame["plan"] for frame in wire.of("release")] == [old.plan_id]
    place(book, old, 0, 7)
    assert (only(old).placed, only(new).placed, book.get("r")) == ([], [], new)


def test_an_admitted_plan_leaves_the_book_and_is_released_by_hand() -> None:
    book, wire = make_book()
    plan = opened(book)
    place(book, plan, 0, 7)
    book.admit(plan.req_id, plan)
    book.release("r")
    assert len(book) == 0
    assert wire.of("release") == []
    book.release_plan(plan)
    assert len(wire.of("release")) == 1


def test_reclaimed_plans_are_released_only_when_the_engine_thread_says_so() -> None:
    book, wire = make_book()
    wanted, kept = opened(book, "a"), opened(book, "b")
    for plan in (wanted, kept):
        place(book, plan, 0, 7)
    book.on_frame({"t": "reclaim", "req": "a", "plan": wanted.plan_id})
    assert book.get("a") is wanted
    assert book.release_wanted() == 1
    assert book.get("a") is None
    assert book.get("b") is kept
    assert [frame["plan"] for frame in wire.of("release")] == [wanted.plan_id]
    assert book.release_wanted() == 0


def test_a_reclaim_of_an_admitted_plan_changes_nothing() -> None:
    book, wire = make_book()
    plan = opened(book)
    book.on_frame({"t": "reclaim", "req": "r", "plan": plan.plan_id})
    book.admit(plan.req_id, plan)
    assert book.release_wanted() == 0
    assert wire.of("release") == []


def test_a_lost_connection_forgets_plans_and_never_releases_them_to_the_next_sidecar() -> None:
    book, wire = make_book()
    waiting, admitted = opened(book, "a"), opened(book, "b")
    book.admit(admitted.req_id, admitted)
    book.closed()
    book.opened()
    book.release_plan(waiting)
    book.release_plan(admitted)
    assert len(book) == 0
    assert wire.of("release") == []


def test_without_a_sidecar_no_plan_is_kept() -> None:
    book, wire = make_book()
    wire.is_up = False
    assert book.open("r", [(GROUP, HASHES)], 0) is None
    assert len(book) == 0


def test_plan_numbers_are_never_used_again() -> None:
    book, _ = make_book()
    numbers = [opened(book).plan_id for _ in range(5)]
    book.closed()
    book.opened()
    numbers.append(opened(book).plan_id)
    assert len(set(numbers)) == len(numbers)


HYBRID = (make_group(), make_state())


@pytest.mark.parametrize(("local", "tier"), [(2, "host"), (1, "vault"), (0, "vault")])
def test_a_restore_is_timed_by_the_farthest_place_a_block_came_from(local: int, tier: str) -> None:
    book, _ = make_book()
    plan = opened(book)
    place(book, plan, 0, 7, 8, local=local)
    plan.taken_tokens, plan.asked_at_s = 8, time.monotonic() - 1
    book.release_plan(plan)
    ((name, times),) = book.restore_times.take().items()
    assert (name, len(times)) == (tier, 1)
    assert times[0] >= 1
    assert book.restore_times.take() == {}


def test_what_was_not_loaded_is_not_timed() -> None:
    book, _ = make_book()
    plan = opened(book)
    place(book, plan, 0, 7, 8)
    book.release_plan(plan)
    assert book.restore_times.take() == {}


def opened_hybrid(book: PlanBook, first_tokens: int = 0) -> Plan:
    plan = book.open("r", [(group, HASHES) for group in HYBRID], first_tokens)
    assert plan is not None
    return plan


def held(book: PlanBook, plan: Plan, tokens: int) -> None:
    groups = [{"group": group.index, "held": b"\xff\xff"} for group in HYBRID]
    fields = {"req": plan.req_id, "plan": plan.plan_id, "groups": groups, "tokens": tokens}
    book.on_frame({"t": "held", **fields})


def place_in(book: PlanBook, plan: Plan, group: int, first: int, *numbers: int) -> None:
    frame = {"t": "placed", "req": plan.req_id, "plan": plan.plan_id, "group": group}
    book.on_frame({**frame, "first": first, "slots": slots(*numbers)})


def test_a_prefetch_names_each_group_with_its_class() -> None:
    book, wire = make_book()
    opened_hybrid(book, first_tokens=8)
    (frame,) = wire.of("prefetch")
    assert [(g["group"], g["class"], g["from"]) for g in frame["groups"]] == [
        (0, "kv", 2),
        (1, "ssm", 2),
    ]


def test_a_boundary_is_ready_only_when_every_group_is_there() -> None:
    book, _ = make_book()
    plan = opened_hybrid(book)
    held(book, plan, 12)
    place_in(book, plan, 0, 0, 10, 11)
    assert plan.ready_from(0) == 0
    place_in(book, plan, 0, 2, 12)
    assert plan.ready_from(0) == 0  # all attention, no state
    place_in(book, plan, 1, 2, 20)
    assert [plan.ready_from(start) for start in (0, 4, 8, 12, 16)] == [12, 8, 4, 0, 0]


def test_without_its_attention_a_state_is_worth_nothing() -> None:
    book, _ = make_book()
    plan = opened_hybrid(book)
    held(book, plan, 12)
    place_in(book, plan, 1, 2, 20)
    place_in(book, plan, 0, 0, 10, 11)
    done(book, plan, "bad_record")
    assert (plan.is_done, plan.ready_from(0)) == (True, 0)


def test_blocks_of_a_boundary_are_all_attention_and_one_state() -> None:
    book, _ = make_book()
    plan = opened_hybrid(book)
    held(book, plan, 12)
    place_in(book, plan, 0, 0, 10, 11, 12)
    place_in(book, plan, 1, 2, 20)
    assert plan.blocks_from(4, 8, [[1, 2, 3, 4], [0, 0, 9, 8]]) == [
        (0, [2, 3], [11, 12]),
        (1, [9], [20]),
    ]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([[1, 2, 3], [0, 0, 0]], "group 1 has no block 2"),
        ([[1, 2, 3], [0, 5, 9]], "group 1 has block 1, which is not placed"),
        ([[1, 0, 3], [0, 0, 9]], "group 0 has no block 1"),
        ([[1, 2], [0, 0, 9]], "group 0 has no block 2"),
    ],
)
def test_blocks_that_are_not_those_which_were_fetched_are_refused(
    tables: list[list[int]], words: str
) -> None:
    book, _ = make_book()
    plan = opened_hybrid(book)
    held(book, plan, 12)
    place_in(book, plan, 0, 0, 10, 11, 12)
    place_in(book, plan, 1, 2, 20)
    with pytest.raises(LoadMismatchError, match=words):
        plan.blocks_from(0, 12, tables)


def test_a_window_may_need_fewer_blocks_than_were_fetched_and_never_other_ones() -> None:
    book, _ = make_book()
    window = make_group(tail=2)
    plan = book.open("r", [(window, HASHES)], 0)
    assert plan is not None
    groups = [{"group": 0, "held": b"\xff\xff"}]
    held_frame = {"t": "held", "req": "r", "plan": plan.plan_id, "groups": groups, "tokens": 16}
    book.on_frame(held_frame)
    place_in(book, plan, 0, 2, 12, 13)
    assert plan.ready_from(0) == 16
    assert plan.blocks_from(0, 16, [[0, 0, 0, 7]]) == [(0, [7], [13])]
    with pytest.raises(LoadMismatchError, match="block 1, which is not placed"):
        plan.blocks_from(0, 16, [[0, 5, 6, 7]])


def test_of_an_unknown_kind_vllm_itself_says_what_it_needs() -> None:
    book, _ = make_book()
    unknown = replace(make_group(), page_bytes=(24, 24), may_skip=True)
    plan = book.open("r", [(unknown, HASHES)], 0)
    assert plan is not None
    place_in(book, plan, 0, 0, 10, 11, 12, 13)
    assert plan.ready_from(0) == 16
    assert plan.blocks_from(0, 16, [[0, 5, 0, 7]]) == [(0, [5, 7], [11, 13])]
    assert plan.blocks_from(0, 16, [[0, 0, 0, 0]]) == [(0, [], [])]
