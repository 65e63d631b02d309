"""Loads whose blocks still come: vLLM is told of all, copies follow what is placed, an end loses only the rest."""

import math
import time
from functools import partial
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import LoadPart, StepMetadata
from tierkv.connectors.vllm.requests.plans import Plan
from tierkv.connectors.vllm.restore.loads import NO_ARENA
from vllm.v1.request import RequestStatus

from .support.engine import (
    FullAttentionSpec,
    Request,
    kv_cache_config,
    make_group,
    make_state,
    step_output,
    vllm_config,
)
from .support.scheduler import ASK_AGAIN, Bench
from .support.sidecar import WELCOME, FakeSidecar, wait_until
from .support.worker import GROUP, Rank

pytestmark = [
    pytest.mark.usefixtures("engine_core_started"),
    pytest.mark.skipif(not compat.fails_requests(), reason="this vLLM fails no load by request"),
]

TABLE = list(range(11, 19))


def begin(bench: Bench, name: str = "r", *placed: int) -> Any:
    """A request of eight whole blocks, of which some are placed and the others may still come; gives its prefetch."""
    request = bench.new(Request(name, 33, seed=name))
    prefetch = bench.prefetch(len(bench.shim._requests))
    bench.held(prefetch, *range(8))
    bench.place(prefetch, 0, *placed)
    bench.let_load(prefetch)
    assert bench.answer(request) == (32, True)
    bench.admit(request, TABLE, 32)
    return prefetch


def parts(step: StepMetadata) -> list[tuple[list[int], list[int], bool, bool]]:
    return [(part.block_ids, part.slots, part.last, part.is_cut) for part in step.loads]


def is_newer(plan: Plan, before: int) -> bool:
    return plan.news > before


def next_parts(bench: Bench) -> list[LoadPart]:
    """The loads of the first step that has any."""
    return list(wait_until(lambda: bench.step().loads, "a step with loads"))


def copied(bench: Bench, *loads: LoadPart, ranks: int = 1) -> None:
    bench.shim.update_connector_output(step_output(copied={part.number: ranks for part in loads}))


def test_hello_says_that_blocks_may_come_later(bench: Bench) -> None:
    assert bench.fake.hellos[0]["windows"] == 1


@pytest.mark.parametrize(
    "shape", [{"groups": [make_group(), make_state()]}, {"groups": [make_group(tail=2)]}]
)
def test_hello_of_an_engine_that_needs_whole_restores_does_not(bench: Bench) -> None:
    assert "windows" not in bench.fake.hellos[0]


def test_only_vllm_that_keeps_what_was_loaded_is_told_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, cache = vllm_config(), kv_cache_config(FullAttentionSpec())
    assert compat.ends_loads(config, cache)
    # vLLM raises where blocks of several groups are lost, also if one of them takes no part in transfers.
    assert not compat.ends_loads(config, kv_cache_config(FullAttentionSpec(), FullAttentionSpec()))
    assert not compat.ends_loads(config, kv_cache_config(FullAttentionSpec(block_size=8)))
    config.parallel_config.decode_context_parallel_size = 2
    assert not compat.ends_loads(config, cache)
    config = vllm_config()
    monkeypatch.setattr(compat, "fails_requests", lambda: False)
    assert not compat.ends_loads(config, cache)


def test_vllm_is_told_of_all_blocks_once_the_sidecar_says_so(bench: Bench) -> None:
    request = bench.new(Request("r", 33))
    prefetch = bench.prefetch()
    bench.held(prefetch, *range(8))
    bench.place(prefetch, 0, 100, 101)
    assert [bench.ask(request) for _ in range(20)] == [ASK_AGAIN] * 20
    bench.let_load(prefetch)
    assert bench.answer(request) == (32, True)


def test_without_a_placed_block_vllm_is_not_told(bench: Bench) -> None:
    request = bench.new(Request("r", 33))
    prefetch = bench.prefetch()
    bench.held(prefetch, *range(8))
    bench.let_load(prefetch)
    wait_until(lambda: bench.shim._book._by_id[prefetch["plan"]].is_loadable, "the frame")
    assert bench.ask(request) == ASK_AGAIN


def test_blocks_are_copied_as_they_are_placed_and_the_last_one_ends_the_load(bench: Bench) -> None:
    prefetch = begin(bench, "r", 100, 101, 102)
    assert parts(bench.step()) == [([11, 12, 13], [100, 101, 102], False, False)]
    assert bench.step().loads == []
    bench.place(prefetch, 3, 50, 51)
    (part,) = next_parts(bench)
    assert (part.block_ids, part.slots, part.last) == ([14, 15], [50, 51], False)
    # Slots return, and come again for other blocks.
    bench.place(prefetch, 5, 100, 101, 102)
    bench.done(prefetch)
    (part,) = next_parts(bench)
    assert (part.block_ids, part.slots, part.last) == ([16, 17, 18], [100, 101, 102], True)
    assert not part.is_cut
    bench.finish_load("r")
    (release,) = bench.fake.expect("release")
    assert (release["tokens"], release["from"]) == (32, 0)
    assert bench.shim.counters.get("tokens_restored") == 32
    assert bench.shim.status()["loads"] == 0


def test_slots_return_once_every_rank_has_copied_them(socket_path: str) -> None:
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar, world=2) as bench:
        request = bench.new(Request("r", 33))
        prefetch = bench.prefetch()
        bench.held(prefetch, *range(8))
        bench.place(prefetch, 0, *range(100, 108))
        bench.let_load(prefetch)
        assert bench.answer(request) == (32, True)
        bench.admit(request, TABLE, 32)
        (first,) = bench.step().loads
        assert first.slots == list(range(100, 108))
        bench.place(prefetch, 4, 110, 111)
        (second,) = next_parts(bench)
        copied(bench, first)
        copied(bench, first, second)
        assert [frame["tokens"] for frame in bench.fake.expect("loaded")] == [16]
        copied(bench, second)
        assert [frame["tokens"] for frame in bench.fake.expect("loaded", 2)] == [16, 20]


def test_an_acknowledgement_that_could_not_be_sent_is_sent_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefetch = begin(bench, "r", 100)
    loads = bench.step().loads
    book, send = bench.shim._book, bench.shim._book._send
    monkeypatch.setattr(book, "_send", lambda frame: False)
    copied(bench, *loads)
    monkeypatch.setattr(book, "_send", send)
    bench.place(prefetch, 1, 101)
    copied(bench, *next_parts(bench))
    assert [frame["tokens"] for frame in bench.fake.expect("loaded")] == [8]


@pytest.mark.parametrize("reason", ["vault_down", "bad_record", "slower", "deadline", "flushed"])
def test_an_end_in_the_middle_loses_only_the_blocks_that_did_not_come(
    bench: Bench, reason: str
) -> None:
    prefetch = begin(bench, "r", 100, 101)
    bench.step()
    bench.place(prefetch, 2, 102)
    bench.done(prefetch, reason)
    found = next_parts(bench)
    while not found[-1].last:
        found += next_parts(bench)
    assert [(part.block_ids, part.slots) for part in found[:-1]] == [([13], [102])]
    end = found[-1]
    assert (end.block_ids, end.slots, end.arena) == ([14, 15, 16, 17, 18], [], NO_ARENA)
    assert end.is_cut
    bench.finish_load("r")
    assert bench.fake.expect("release")[0]["tokens"] == 12
    counters = bench.shim.counters
    assert (counters.get("tokens_restored"), counters.get(f"loads_ended_{reason}")) == (12, 1)
    assert counters.get("restores_failed") == 0


def test_a_late_frame_after_the_end_copies_nothing(bench: Bench) -> None:
    prefetch = begin(bench, "r", 100)
    plan = bench.shim._book._by_id[prefetch["plan"]]
    before = plan.news
    bench.done(prefetch, "slower")
    bench.place(prefetch, 1, 101)
    wait_until(lambda: plan.news == before + 2, "the late frame")
    found = bench.step().loads
    assert [(part.block_ids, part.is_cut) for part in found] == [([11], False), (TABLE[1:], True)]
    bench.place(prefetch, 1, 101)
    wait_until(lambda: plan.news == before + 3, "the late frame")
    assert bench.step().loads == []
    bench.finish_load("r")
    assert bench.step().loads == []


def test_a_plan_that_ended_before_vllm_took_the_offer_is_cut(bench: Bench) -> None:
    request = bench.new(Request("r", 33))
    prefetch = bench.prefetch()
    bench.held(prefetch, *range(8))
    bench.place(prefetch, 0, 100)
    bench.let_load(prefetch)
    assert bench.answer(request) == (32, True)
    bench.done(prefetch, "vault_down")
    plan = bench.shim._book._by_id[prefetch["plan"]]
    wait_until(lambda: plan.done_reason, "the end")
    bench.admit(request, TABLE, 32)
    found = next_parts(bench)
    assert [(part.block_ids, part.last, part.is_cut) for part in found] == [
        ([11], False, False),
        (TABLE[1:], True, True),
    ]


def test_a_sidecar_that_goes_ends_the_load(bench: Bench) -> None:
    begin(bench, "r", 100, 101)
    assert len(bench.step().loads) == 1
    bench.fake.drop_connections()
    (end,) = next_parts(bench)
    assert (end.block_ids, end.last, end.is_cut) == (TABLE[2:], True, True)
    bench.finish_load("r")
    assert bench.shim.counters.get("loads_ended_closed") == 1


def test_a_silent_sidecar_is_waited_for_no_longer_than_stall_ms(socket_path: str) -> None:
    welcome = {**WELCOME, "stall_ms": 200}
    with FakeSidecar(socket_path, welcome) as sidecar, Bench(socket_path, sidecar) as bench:
        begin(bench, "r", 100)
        assert len(bench.step().loads) == 1
        (end,) = next_parts(bench)
        assert (end.block_ids, end.is_cut) == (TABLE[1:], True)
        assert bench.shim.counters.get("loads_ended_stalled") == 1


def test_a_sidecar_that_still_works_on_it_is_waited_for(socket_path: str) -> None:
    welcome = {**WELCOME, "stall_ms": 300}
    with FakeSidecar(socket_path, welcome) as sidecar, Bench(socket_path, sidecar) as bench:
        prefetch = begin(bench, "r", 100)
        plan = bench.shim._book._by_id[prefetch["plan"]]
        assert len(bench.step().loads) == 1
        begun_s = plan.progress_at_s
        while plan.progress_at_s < begun_s + 1.0:
            before = plan.news
            bench._about(prefetch, t="waits")
            wait_until(partial(is_newer, plan, before), "the frame")
            assert bench.step().loads == []
        bench.place(prefetch, 1, *range(101, 108))
        assert next_parts(bench)[-1].last


def test_an_aborted_request_copies_nothing_more_and_is_still_reported(bench: Bench) -> None:
    prefetch = begin(bench, "r", 100)
    bench.step()
    bench.place(prefetch, 1, 101)
    plan = bench.shim._book._by_id[prefetch["plan"]]
    wait_until(lambda: plan.groups[0].end == 2, "the block")
    bench.shim.request_finished(bench.shim._requests["r"].request)
    (end,) = next_parts(bench)
    assert (end.block_ids, end.last, end.is_cut) == ([], True, True)
    bench.finish_load("r")
    assert bench.releases(1) == [prefetch["plan"]]
    assert bench.shim.status()["loads"] == 0


def test_new_weights_fail_the_whole_load(bench: Bench) -> None:
    begin(bench, "r", 100)
    bench.step()
    bench.shim._windows.fail_all()
    (end,) = next_parts(bench)
    assert (end.last, end.is_cut, end.arena) == (True, False, NO_ARENA)


def test_once_tierkv_is_off_the_load_fails(bench: Bench) -> None:
    begin(bench, "r", 100)
    step = bench.shim.owed.step(step_output_of({}))
    assert [(part.req_id, part.last, part.is_cut) for part in step.loads] == [("r", True, False)]
    assert step.is_off


def step_output_of(tokens: dict[str, int]) -> Any:
    return type("Scheduled", (), {"num_scheduled_tokens": tokens})()


def test_two_loads_at_once_wait_for_their_own_blocks(bench: Bench) -> None:
    first = begin(bench, "a", 100)
    second = begin(bench, "b", 200)
    assert [part.req_id for part in bench.step().loads] == ["a", "b"]
    bench.place(second, 1, 201)
    (part,) = next_parts(bench)
    assert (part.req_id, part.slots) == ("b", [201])
    bench.place(first, 1, *range(101, 108))
    (part,) = next_parts(bench)
    assert (part.req_id, part.last) == ("a", True)


def test_a_short_load_passes_one_that_waits(bench: Bench) -> None:
    begin(bench, "long", 100)
    bench.step()
    request = bench.new(Request("short", 9, seed="short"))
    prefetch = bench.prefetch(2)
    bench.place(prefetch, 0, 7, 8)
    assert bench.answer(request) == (8, True)
    bench.admit(request, [21, 22], 8)
    assert [part.req_id for part in bench.step().loads] == ["short"]


def test_a_shared_plan_is_loaded_by_one_request_and_the_others_follow_it(bench: Bench) -> None:
    first = bench.new(Request("a", 33, seed="same"))
    other = bench.new(Request("b", 33, seed="same"))
    prefetch = bench.prefetch()
    bench.held(prefetch, *range(8))
    bench.place(prefetch, 0, 100)
    bench.let_load(prefetch)
    assert bench.answer(first) == (32, True)
    bench.admit(first, TABLE, 32)
    first.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    assert bench.ask(other) == ASK_AGAIN
    bench.place(prefetch, 1, *range(101, 108))
    assert bench.shim._book.get("b") is None
    assert wait_until(lambda: any(part.last for part in bench.step().loads), "the last part")


@pytest.mark.parametrize("windows", [1, 3])
def test_a_restore_whose_block_is_checked_waits_for_all_blocks_where_they_fit(
    socket_path: str, windows: int
) -> None:
    welcome = {**WELCOME, "verify_every": 1}
    with FakeSidecar(socket_path, welcome) as sidecar, Bench(socket_path, sidecar) as bench:
        request = bench.new(Request("r", 33))
        prefetch = bench.prefetch()
        groups = [{"group": 0, "held": b"\xff"}]
        bench._about(prefetch, t="held", groups=groups, tokens=32, windows=windows)
        bench.place(prefetch, 0, 100, 101)
        bench.let_load(prefetch)
        plan = bench.shim._book._by_id[prefetch["plan"]]
        wait_until(lambda: plan.is_loadable, "the frame")
        if windows > 1:
            assert bench.answer(request) == (32, True)
            return
        assert [bench.ask(request) for _ in range(5)] == [ASK_AGAIN] * 5
        bench.place(prefetch, 2, *range(102, 108))
        bench.done(prefetch)
        assert bench.answer(request) == (28, True)
        bench.admit(request, TABLE, 28)
        (part,) = bench.step().loads
        assert (part.block_ids, part.last) == (TABLE[:7], True)


def test_the_budget_of_a_prompt_in_windows_is_a_wait_for_each(socket_path: str) -> None:
    welcome = {**WELCOME, "wait_ms": 300, "stall_ms": 60_000}
    with FakeSidecar(socket_path, welcome) as sidecar, Bench(socket_path, sidecar) as bench:
        request = bench.new(Request("r", 33))
        prefetch = bench.prefetch()
        groups = [{"group": 0, "held": b"\xff"}]
        bench._about(prefetch, t="held", groups=groups, tokens=32, windows=1000)
        plan = bench.shim._book._by_id[prefetch["plan"]]
        wait_until(lambda: plan.windows == 1000, "the frame")
        asked_s = -math.inf

        def is_late() -> bool:
            nonlocal asked_s
            assert bench.ask(request) == ASK_AGAIN
            asked_s = bench.shim._requests["r"].first_ask_s or math.inf
            return time.monotonic() - asked_s > 0.6

        wait_until(is_late, "twice the wait")


class TestWorker:
    """The worker's half."""

    @pytest.fixture
    def rank(self, socket_path: str) -> Any:
        with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as made:
            made.give_arena()
            yield made

    @staticmethod
    def fill(rank: Rank, *slots: int) -> list[bytes]:
        pages = [bytes([slot + 1]) * GROUP.block_bytes for slot in slots]
        for slot, page in zip(slots, pages, strict=True):
            rank.arenas[-1].write(slot, page)
        return pages

    def test_parts_are_acknowledged_and_a_cut_reports_the_lost_blocks_with_the_request(
        self, rank: Rank
    ) -> None:
        pages = self.fill(rank, 0, 1)
        rank.load([1, 2], [0, 1], last=False, number=7)
        assert rank.shim.take_finished() == (set(), set())
        receipts = rank.shim.take_receipts()
        assert receipts is not None
        assert dict(receipts.copied) == {7: 1}
        rank.load([3, 4], [], arena=NO_ARENA, is_cut=True)
        assert rank.shim.take_finished() == ({"r"}, set())
        assert rank.shim.arrivals.take_failed_blocks() == {3, 4}
        assert [rank.page(1), rank.page(2)] == pages
        assert rank.shim.take_finished() == (set(), set())
        assert rank.shim.arrivals.take_failed_blocks() == set()

    def test_a_cut_after_a_failed_part_fails_the_request(self, rank: Rank) -> None:
        rank.load([1], [0], arena=99, last=False, number=1)
        rank.load([3, 4], [], arena=NO_ARENA, is_cut=True)
        assert rank.shim.take_finished() == (set(), {"r"})
        assert rank.shim.arrivals.take_failed_blocks() == set()
        receipts = rank.shim.take_receipts()
        assert receipts is not None
        assert receipts.copied[1] == 1  # its slot is read no more

    def test_nothing_is_reported_before_running_copies_have_ended(self, rank: Rank) -> None:
        self.fill(rank, 0)
        held: list[Any] = []
        copier = rank.shim._copier
        load = copier.load
        copier.load = held.append  # type: ignore[method-assign, assignment]
        rank.load([1], [0], last=False, number=1)
        rank.load([2], [], arena=NO_ARENA, is_cut=True)
        assert rank.shim.take_finished() == (set(), set())
        load(held.pop())
        assert rank.shim.take_finished() == ({"r"}, set())

    def test_a_failure_is_not_reported_while_an_earlier_part_is_copied(self, rank: Rank) -> None:
        self.fill(rank, 0)
        held: list[Any] = []
        copier = rank.shim._copier
        load = copier.load
        copier.load = held.append  # type: ignore[method-assign, assignment]
        rank.load([1], [0], last=False)
        rank.load([2], [1], arena=99)
        assert rank.shim.take_finished() == (set(), set())
        load(held.pop())
        assert rank.shim.take_finished() == (set(), {"r"})

    @pytest.mark.parametrize("is_awake_again", [False, True])
    def test_a_load_that_vllm_slept_through_fails_as_a_whole(
        self, rank: Rank, is_awake_again: bool
    ) -> None:
        self.fill(rank, 0)
        rank.load([1], [0], last=False, number=1)
        rank.shim.sleep(is_asleep=True)
        if is_awake_again:
            rank.shim.sleep(is_asleep=False)
        rank.load([2], [], arena=NO_ARENA, is_cut=True)
        assert rank.shim.take_finished() == (set(), {"r"})

    def test_an_end_after_unheard_new_weights_fails_the_load(
        self, rank: Rank, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fill(rank, 0)
        rank.load([1], [0], last=False, number=1)
        monkeypatch.setattr(rank.shim.weights, "is_unheard", lambda _: True)
        rank.load([2], [], arena=NO_ARENA, is_cut=True)
        assert rank.shim.take_finished() == (set(), {"r"})

    def test_a_rank_that_turns_off_fails_an_open_load_with_its_last_part(self, rank: Rank) -> None:
        self.fill(rank, 0)
        rank.load([1], [0], last=False, number=1)
        rank.shim.turn_off("a test says so")
        assert rank.shim.take_finished() == (set(), set())
        cut = LoadPart("r", NO_ARENA, 0, [2], [], last=True, is_cut=True)
        rank.shim.owe_step(StepMetadata(loads=[cut]))
        assert rank.shim.take_finished() == (set(), {"r"})


def test_pages_are_as_placed(socket_path: str) -> None:
    """Both halves over one arena: a slot that returns and is used again never shows in an earlier page."""
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as rank:
        arena = rank.give_arena(slots=2)
        rank.memory.zero_()
        for block in range(1, 7):
            arena.write(block % 2, bytes([block]) * GROUP.block_bytes)
            rank.load([block], [block % 2], last=block == 6, number=block)
        assert torch.equal(rank.memory[:, 0], torch.zeros_like(rank.memory[:, 0]))
        assert [rank.page(n) for n in range(1, 7)] == [
            bytes([n]) * GROUP.block_bytes for n in range(1, 7)
        ]
