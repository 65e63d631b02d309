"""Fetch plans: blocks without holes, progress of dead plans ignored, slots given back exactly once."""

import struct

import pytest
from tierkv.connectors.vllm.frames import Frame
from tierkv.connectors.vllm.plans import Plan, PlanBook

from .support.engine import chain

HASHES = chain("a", 10)


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


def make_book(world: int = 1) -> tuple[PlanBook, Wire]:
    wire = Wire()
    book = PlanBook(wire.send, world)
    book.opened()
    book.on_frame({"t": "restore", "arena": 5, "on": True})
    return book, wire


def opened(book: PlanBook, req: str = "r", first: int = 0) -> Plan:
    plan = book.open(req, 0, HASHES, first)
    assert plan is not None
    return plan


def place(book: PlanBook, plan: Plan, first: int, *numbers: int) -> None:
    frame = {"t": "placed", "req": plan.req_id, "plan": plan.plan_id, "group": 0}
    book.on_frame({**frame, "first": first, "slots": slots(*numbers)})


def done(book: PlanBook, plan: Plan, reason: str = "complete") -> None:
    book.on_frame({"t": "done", "req": plan.req_id, "plan": plan.plan_id, "reason": reason})


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
    assert [plan.ready_from(start) for start in range(7)] == [0, 0, 3, 2, 1, 0, 0]
    assert plan.slots_from(3, 2) == [21, 22]
    assert plan.arena == 5


def test_a_block_has_one_slot_per_rank() -> None:
    book, _ = make_book(world=2)
    plan = opened(book)
    place(book, plan, 0, 10, 11, 12, 13)
    assert plan.placed_blocks == 2
    assert plan.slots_from(1, 1) == [12, 13]
    place(book, plan, 2, 14)  # half a block
    assert plan.done_reason == "out_of_order"
    assert plan.placed_blocks == 2


@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_hole_or_a_repeat_ends_the_plan_where_it_was(first: int) -> None:
    book, _ = make_book()
    plan = opened(book)
    place(book, plan, 0, 1, 2, 3)
    place(book, plan, first, 9)
    assert (plan.placed, plan.is_done) == ([1, 2, 3], True)


def test_slots_of_another_arena_never_join_a_plan() -> None:
    book, _ = make_book()
    plan = opened(book)
    place(book, plan, 0, 1)
    book.on_frame({"t": "restore", "arena": 6, "on": True})
    place(book, plan, 1, 1)
    assert (plan.arena, plan.placed) == (5, [1])


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
    book.on_frame({"t": "held", "req": "r", "plan": plan.plan_id, "groups": groups})
    assert [index for index in range(16) if plan.holds(index)] == [0, 2, 8, 9]


def test_a_second_plan_of_a_request_releases_the_first_and_ignores_its_late_frames() -> None:
    book, wire = make_book()
    old = opened(book)
    new = opened(book)
    assert [frame["plan"] for frame in wire.of("release")] == [old.plan_id]
    place(book, old, 0, 7)
    assert (old.placed, new.placed, book.get("r")) == ([], [], new)


def test_an_admitted_plan_leaves_the_book_and_is_released_by_hand() -> None:
    book, wire = make_book()
    plan = opened(book)
    place(book, plan, 0, 7)
    book.admit(plan)
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
    book.admit(plan)
    assert book.release_wanted() == 0
    assert wire.of("release") == []


def test_a_lost_connection_forgets_plans_and_never_releases_them_to_the_next_sidecar() -> None:
    book, wire = make_book()
    waiting, admitted = opened(book, "a"), opened(book, "b")
    book.admit(admitted)
    book.closed()
    book.opened()
    book.release_plan(waiting)
    book.release_plan(admitted)
    assert len(book) == 0
    assert wire.of("release") == []


def test_without_a_sidecar_no_plan_is_kept() -> None:
    book, wire = make_book()
    wire.is_up = False
    assert book.open("r", 0, HASHES, 0) is None
    assert len(book) == 0


def test_plan_numbers_are_never_used_again() -> None:
    book, _ = make_book()
    numbers = [opened(book).plan_id for _ in range(5)]
    book.closed()
    book.opened()
    numbers.append(opened(book).plan_id)
    assert len(set(numbers)) == len(numbers)
