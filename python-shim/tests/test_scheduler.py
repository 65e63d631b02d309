"""The scheduler side against a scripted sidecar: what it answers vLLM, what it admits, saves and gives back."""

import time

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import StepReceipts
from tierkv.connectors.vllm.naming.fidelity import OTHER_FIDELITY
from tierkv.connectors.vllm.requests.plans import Plan

from .support.engine import Request, step_output
from .support.scheduler import ARENA, ASK_AGAIN, NOTHING, Bench
from .support.sidecar import WELCOME, FakeSidecar, wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")


def quick(path: str, **budget: int) -> FakeSidecar:
    return FakeSidecar(path, {**WELCOME, **budget})


def test_arrival_asks_for_what_the_engine_lacks(bench: Bench) -> None:
    request = Request("r", 40)
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(request.block_hashes[:3])}
    bench.new(request)
    (group,) = bench.prefetch()["groups"]
    assert group["from"] == 3
    assert group["hashes"] == b"".join(request.block_hashes[:9])  # one token is always computed


@pytest.mark.parametrize(("tokens", "blocks"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (40, 9)])
def test_at_least_one_token_is_left_to_compute(bench: Bench, tokens: int, blocks: int) -> None:
    request = bench.new(Request("r", tokens))
    if blocks == 0:
        assert bench.ask(request) == NOTHING
        return
    prefetch = bench.prefetch()
    assert len(prefetch["groups"][0]["hashes"]) == 32 * blocks
    bench.place(prefetch, 0, *range(blocks))
    assert bench.answer(request) == (blocks * 4, True)


def test_the_namespace_goes_before_the_first_prefetch_and_once(bench: Bench) -> None:
    bench.new(Request("a", 16))
    bench.new(Request("b", 16, seed="b"))
    bench.prefetch(2)
    assert bench.kinds() == ["namespace", "prefetch", "prefetch"]
    assert len(bench.fake.expect("namespace")[0]["namespace"]) == 32


def test_an_engine_that_only_saves_is_named_too(bench: Bench) -> None:
    bench.new(Request("r", 4))  # too short to restore anything
    assert len(bench.step({"r": 4}, r=[1]).saves) == 1
    bench.fake.expect("namespace")
    bench.step({"r": 1}, r=[1])
    assert bench.kinds() == ["namespace"]


def test_before_the_engine_has_a_root_hash_nothing_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "none_hash", lambda: None)
    request = bench.new(Request("r", 16))
    assert bench.ask(request) == NOTHING


def test_the_answer_is_ask_again_until_placed_and_the_same_however_often_asked(
    bench: Bench,
) -> None:
    request = bench.new(Request("r", 17))
    prefetch = bench.prefetch()
    assert [bench.ask(request) for _ in range(20)] == [ASK_AGAIN] * 20
    bench.held(prefetch, 0, 1, 2, 3)
    bench.place(prefetch, 0, 10, 11)
    assert bench.ask(request) == ASK_AGAIN
    bench.place(prefetch, 2, 12, 13)
    assert bench.answer(request) == (16, True)
    assert [bench.ask(request) for _ in range(20)] == [(16, True)] * 20
    assert len(bench.fake.expect("prefetch")) == 1


def test_blocks_that_arrive_while_they_are_counted_are_not_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = bench.new(Request("r", 17))
    prefetch = bench.prefetch()
    plan = bench.shim._book.get("r")
    assert plan is not None
    count = Plan.ready_from

    def place_after_counting(of: Plan, start: int) -> int:
        ready = count(of, start)
        monkeypatch.setattr(Plan, "ready_from", count)
        bench.place(prefetch, 0, 10, 11, 12, 13)
        bench.done(prefetch)
        wait_until(lambda: of.is_done, "the blocks are there")
        return ready

    monkeypatch.setattr(Plan, "ready_from", place_after_counting)
    assert bench.ask(request) == ASK_AGAIN
    assert bench.ask(request) == (16, True)


def test_a_short_hit_is_taken_as_it_is(bench: Bench) -> None:
    request = bench.new(Request("r", 17))
    bench.place(bench.prefetch(), 0, 10)
    bench.done(bench.prefetch(), "end_of_hit")
    assert bench.answer(request) == (4, True)


@pytest.mark.parametrize(("why", "counted"), [({}, "end_of_hit"), ({"why": "evicted"}, "evicted")])
def test_a_miss_answers_nothing_at_once(bench: Bench, why: dict[str, str], counted: str) -> None:
    request = bench.new(Request("r", 17))
    bench.done(bench.prefetch(), "end_of_hit", **why)
    assert (bench.answer(request), bench.ask(request)) == (NOTHING, NOTHING)
    assert bench.shim.counters.snapshot()[f"misses_{counted}"] == 1


def test_an_admission_loads_exactly_the_blocks_after_the_local_hit(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(100, 110))
    assert bench.answer(request, 12) == (28, True)
    bench.admit(request, list(range(1, 11)), 28)
    (part,) = bench.step().loads
    assert part.block_ids == [4, 5, 6, 7, 8, 9, 10]
    assert part.slots == [103, 104, 105, 106, 107, 108, 109]
    assert (part.req_id, part.arena, part.last) == ("r", ARENA, True)
    assert bench.step().loads == []


def test_a_shrunken_local_hit_is_planned_again(bench: Bench) -> None:
    request = Request("r", 41)
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(request.block_hashes[:5])}
    bench.new(request)
    bench.place(bench.prefetch(), 5, *range(5))
    assert bench.answer(request, 20) == (20, True)
    assert bench.ask(request, 8) == ASK_AGAIN
    again = bench.prefetch(2)
    assert again["groups"][0]["from"] == 2
    assert bench.releases(1) == [bench.prefetch()["plan"]]
    bench.place(again, 2, *range(20, 28))
    assert bench.answer(request, 8) == (32, True)
    bench.admit(request, list(range(1, 11)), 32)
    (part,) = bench.step().loads
    assert (part.block_ids, part.slots) == (list(range(3, 11)), list(range(20, 28)))


def test_planning_again_is_not_for_ever(bench: Bench) -> None:
    request = Request("r", 80)
    bench.pool.cached = {h: n + 1 for n, h in enumerate(request.block_hashes[:15])}
    bench.new(request)
    answers = [bench.ask(request, 4 * start) for start in range(14, 0, -1)]
    assert answers.count(ASK_AGAIN) == limits.PLANS_PER_ADMISSION_MAX - 1
    assert answers[-1] == NOTHING


def test_a_grown_local_hit_needs_less(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(10))
    assert bench.answer(request) == (40, True)
    assert bench.ask(request, 36) == (4, True)
    assert bench.ask(request, 40) == NOTHING


def test_vllm_taking_nothing_of_an_offer_releases_it(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(10))
    assert bench.answer(request) == (40, True)
    bench.admit(request, list(range(1, 12)), 0)
    assert bench.releases(1) == [bench.prefetch()["plan"]]
    assert bench.step().loads == []
    bench.shim.request_finished(request)
    assert bench.shim.status() == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}


def test_when_time_is_up_what_is_placed_is_taken(socket_path: str) -> None:
    with quick(socket_path, wait_ms=300) as sidecar, Bench(socket_path, sidecar) as bench:
        request = bench.new(Request("r", 41))
        bench.place(bench.prefetch(), 0, 7)
        started = time.monotonic()
        assert bench.answer(request) == (4, True)
        assert 0.2 < time.monotonic() - started < 3.0
        assert bench.shim.counters.get("restores_cut_short") > 0


def test_f31_when_nothing_comes_the_request_goes_on_and_does_not_ask_again(
    socket_path: str,
) -> None:
    with quick(socket_path, stall_ms=200) as sidecar, Bench(socket_path, sidecar) as bench:
        request = bench.new(Request("r", 41))
        bench.held(bench.prefetch(), *range(10))
        assert bench.answer(request) == NOTHING
        bench.place(bench.prefetch(), 0, *range(10))  # too late: the engine may have started
        assert [bench.ask(request) for _ in range(5)] == [NOTHING] * 5


def test_an_unanswered_look_up_makes_the_sidecar_a_suspect_for_everyone(socket_path: str) -> None:
    with quick(socket_path, stall_ms=2000) as sidecar, Bench(socket_path, sidecar) as bench:
        first = bench.new(Request("a", 41))
        second = bench.new(Request("b", 41, seed="b"))
        bench.prefetch(2)
        sidecar.reads.clear()
        assert bench.answer(first) == NOTHING
        started = time.monotonic()
        assert bench.ask(second) == NOTHING
        assert bench.ask(bench.new(Request("c", 41))) == NOTHING
        assert time.monotonic() - started < 1.0, "both together wait less than one time-out"


def test_without_a_sidecar_every_answer_is_nothing(socket_path: str) -> None:
    with Bench(socket_path, None) as bench:
        request = bench.new(Request("r", 41))
        assert bench.ask(request) == NOTHING
        bench.admit(request, [], 0)
        assert len(bench.step({"r": 41}, r=list(range(1, 12))).saves) == 10
        bench.shim.request_finished(request)


@pytest.mark.parametrize(
    "untouched", ["pooling_params", "lora_request", "prompt_embeds", "resumable"]
)
def test_what_block_hashes_do_not_name_is_left_alone(bench: Bench, untouched: str) -> None:
    request = Request("r", 41)
    setattr(request, untouched, object())
    bench.new(request)
    assert bench.ask(request) == NOTHING
    bench.admit(request, list(range(1, 12)), 0)
    assert bench.step({"r": 41}, r=list(range(1, 12))).saves == []
    assert bench.shim.counters.get("requests_untouched") == 1


def test_a_request_that_must_not_read_caches_saves_only(bench: Bench) -> None:
    request = bench.new(Request("r", 41, skip_reading_prefix_cache=True))
    assert bench.ask(request) == NOTHING
    assert len(bench.step({"r": 41}, r=list(range(1, 12))).saves) == 10
    assert [frame["t"] for frame in bench.fake.frames if frame["t"] == "prefetch"] == []


def test_an_abort_while_loading_keeps_the_load_until_it_is_reported(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(10))
    bench.answer(request)
    bench.admit(request, list(range(1, 12)), 40)
    bench.shim.request_finished(request)
    assert bench.shim.status()["loads"] == 1
    assert bench.shim.has_pending_work()
    assert len(bench.step().loads) == 1
    bench.finish_load("r")
    assert bench.releases(1) == [bench.prefetch()["plan"]]
    assert bench.shim.status() == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
    bench.finish_load("r")
    assert len(bench.releases(1)) == 1


def test_an_abort_before_admission_releases_the_plan(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(10))
    bench.answer(request)
    bench.shim.request_finished(request)
    assert bench.releases(1) == [bench.prefetch()["plan"]]


def test_a_preempted_request_is_matched_loaded_and_released_again(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    for life in (1, 2, 3):
        if life > 1:
            assert bench.ask(request) == ASK_AGAIN
        bench.place(bench.prefetch(life), 0, *range(10))
        assert bench.answer(request) == (40, True)
        bench.admit(request, list(range(life, life + 11)), 40)
        (part,) = bench.step().loads
        assert part.block_ids == list(range(life, life + 10))
        bench.finish_load("r")
        bench.admit(request, list(range(life, life + 11)), 0)  # the second call of an async load
        assert len(bench.releases(life)) == life


def test_a_reclaimed_plan_goes_back_only_between_offers(bench: Bench) -> None:
    kept, given = bench.new(Request("a", 41)), bench.new(Request("b", 41, seed="b"))
    for number, request in enumerate((kept, given), start=1):
        bench.place(bench.prefetch(number), 0, *range(10))
        bench.answer(request)
        bench.reclaim(bench.prefetch(number))
    bench.admit(kept, list(range(1, 12)), 40)  # admitted after the wish, before the next step
    step = bench.step()
    assert [part.req_id for part in step.loads] == ["a"]
    assert bench.releases(1) == [bench.prefetch(2)["plan"]]


def test_an_offer_survives_the_death_of_the_sidecar(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(10))
    assert bench.answer(request) == (40, True)
    bench.fake.kill()
    wait_until(lambda: not bench.shim._channel.is_up, "the end is noticed")
    bench.admit(request, list(range(1, 12)), 40)
    assert [part.arena for part in bench.step().loads] == [ARENA]
    bench.finish_load("r")
    assert bench.ask(bench.new(Request("b", 41))) == NOTHING


def test_a_new_connection_is_named_anew_and_hears_nothing_of_old_plans(bench: Bench) -> None:
    old = bench.new(Request("old", 41))
    bench.place(bench.prefetch(), 0, *range(10))
    bench.answer(old)
    bench.admit(old, list(range(1, 12)), 40)
    bench.fake.drop_connections()
    wait_until(lambda: not bench.shim._book.restore_on, "the end is noticed")
    bench.connected()
    bench.finish_load("old")
    bench.new(Request("new", 41))
    bench.prefetch(2)
    kinds = [kind for kind in bench.kinds() if kind != "asked"]
    assert kinds == ["namespace", "prefetch", "namespace", "prefetch"]


@pytest.mark.parametrize(
    ("before", "after", "named"), [(0, 2, True), (2, 2, True), (2, 0, False), (2, 3, False)]
)
def test_an_engine_that_may_hold_lossy_blocks_stays_with_their_fidelity(
    socket_path: str, before: int, after: int, named: bool
) -> None:
    with (
        FakeSidecar(socket_path, fidelity=before) as sidecar,
        Bench(socket_path, sidecar) as bench,
    ):

        def refusals() -> list[str]:
            frames = [frame for frame in sidecar.frames if "naming" in frame]
            return [frame["naming"]["refused"] for frame in frames]

        bench.new(Request("old", 41))
        bench.prefetch()
        sidecar.fidelity = after
        sidecar.drop_connections()
        wait_until(lambda: not bench.shim._book.restore_on, "the end is noticed")
        bench.connected()
        request = bench.new(Request("new", 41))
        if named:
            bench.prefetch(2)
        else:
            assert bench.ask(request) == NOTHING
            assert bench.shim.counters.take_changes()["fidelity_changed"] >= 1
            bench.step({"new": 41}, new=list(range(1, 12)))
            wait_until(lambda: refusals()[-1:] == [OTHER_FIDELITY], "the refusal is reported")
            assert bench.shim.counters.get("names_refused") == 1
            sidecar.fidelity = before
            sidecar.drop_connections()
            wait_until(lambda: refusals()[-1:] == [""], "the sidecar with the earlier form")
            return
        assert not any(refusals())
        names = [frame["namespace"] for frame in sidecar.frames if frame["t"] == "namespace"]
        assert len(names) == 2
        assert len(set(names)) == (1 if before == after else 2)


def test_saves_ride_in_the_step_that_fills_a_block_unless_held(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    prefetch = bench.prefetch()
    bench.held(prefetch, 0, 1, 2)
    bench.done(prefetch, "no_slot")
    assert bench.answer(request) == NOTHING
    table = list(range(1, 12))
    assert [item.block_id for item in bench.step({"r": 31}, r=table).saves] == [4, 5, 6, 7]
    request.num_computed_tokens = 31
    step = bench.step({"r": 10}, r=table)
    assert [item.block_id for item in step.saves] == [8, 9, 10]
    assert bench.shim.has_pending_work()
    bench.shim.update_connector_output(step_output(tickets={step.ticket: 1, step.ticket - 1: 1}))
    assert bench.pool.referenced == []
    assert not bench.shim.has_pending_work()


def test_restored_blocks_are_not_saved_again(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.held(bench.prefetch(), *range(10))
    bench.place(bench.prefetch(), 0, *range(10))
    assert bench.answer(request) == (40, True)
    bench.admit(request, list(range(1, 12)), 40)
    bench.step()
    bench.finish_load("r")
    request.num_computed_tokens = 40
    assert bench.step({"r": 1}, r=list(range(1, 12))).saves == []


def test_what_still_waits_to_be_saved_as_the_engine_ends_is_counted(bench: Bench) -> None:
    bench.new(Request("r", 4))
    bench.shim._saves.hear(StepReceipts(slots=0))
    assert bench.step({"r": 4}, r=[1]).saves == []
    bench.shim.shutdown()

    def is_told() -> bool:
        told = [frame["counters"] for frame in bench.fake.frames if frame["t"] == "counts"]
        return bool(sum(each.get("dropped_save_engine_ended", 0) for each in told) == 1)

    wait_until(is_told, "the last counters arrived")
    assert bench.shim.status()["saves"] == 0
