"""Generations of weights: what a change, a reset and a sleep do to what the scheduler side restores and saves."""

from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import Memory, StepReceipts

from .support.engine import Request
from .support.scheduler import ASK_AGAIN, NOTHING, Bench
from .support.sidecar import FakeSidecar

pytestmark = pytest.mark.usefixtures("engine_core_started")


def empty_cache(bench: Bench) -> None:
    """What vLLM's `reset_prefix_cache` does to its pool."""
    bench.pool.cached_block_hash_to_block = object()


LOADED = Memory(0, "as loaded", is_loaded=True)
UNKNOWN = Memory(0)


def hear(
    bench: Bench, *, changed_at: int = 0, question: int = 0, held: Memory = UNKNOWN, rank: int = 0
) -> None:
    answers = {rank: held._replace(question=question)} if question else {}
    receipts = StepReceipts(changed_at=changed_at, memory=answers)
    output = SimpleNamespace(finished_recving=None, kv_connector_worker_meta=receipts)
    bench.shim.update_connector_output(output)


def names(bench: Bench, count: int) -> list[bytes]:
    return [frame["namespace"] for frame in bench.fake.expect("namespace", count)]


def test_a_reset_is_followed_by_a_question_and_a_name_nobody_else_has(bench: Bench) -> None:
    bench.new(Request("a", 41))
    bench.prefetch()
    assert bench.shim.reset_cache()
    request = bench.new(Request("b", 41))
    assert bench.ask(request) == ASK_AGAIN  # also once it is placed: the workers have not answered
    metadata = bench.step()
    assert metadata.question > 0
    hear(bench, question=metadata.question)
    assert bench.ask(request) == ASK_AGAIN  # a look-up under the new name runs
    first, second = names(bench, 2)
    assert first != second
    assert bench.shim.counters.snapshot()["generations"] == 1


def reset(bench: Bench, held: Memory) -> None:
    assert bench.shim.reset_cache()
    empty_cache(bench)
    hear(bench, question=bench.step().question, held=held)


def test_after_a_reset_that_left_the_weights_the_name_stays(bench: Bench) -> None:
    reset(bench, LOADED)
    bench.new(Request("a", 41))
    bench.prefetch()
    assert len(names(bench, 1)) == 1
    assert "generations" not in bench.shim.counters.snapshot()


def name_after(bench: Bench, request_id: str, count: int) -> bytes:
    bench.new(Request(request_id, 41, seed=request_id))
    return names(bench, count)[-1]


def test_weights_that_come_back_have_their_old_name(bench: Bench) -> None:
    first = name_after(bench, "a", 1)
    reset(bench, Memory(0, "trained"))
    trained = name_after(bench, "b", 2)
    reset(bench, LOADED)
    assert name_after(bench, "c", 3) == first
    reset(bench, Memory(0, "trained"))
    assert name_after(bench, "d", 4) == trained != first
    reset(bench, Memory(0, "trained further"))
    assert name_after(bench, "e", 5) not in (first, trained)


def test_weights_updated_in_place_have_a_name_that_equal_ones_share(socket_path: str) -> None:
    found = []
    for number, digest in enumerate(("trained", "trained", "trained otherwise")):
        path = f"{socket_path}.{number}"
        with FakeSidecar(path) as sidecar, Bench(path, sidecar) as bench:
            bench.step()
            hear(bench, changed_at=1)
            reset(bench, Memory(0, digest))
            found.append(name_after(bench, "a", 1))
    assert found[0] == found[1] != found[2]


def test_weights_that_memory_does_not_show_have_a_name_nobody_shares(bench: Bench) -> None:
    seen = set()
    for number in range(3):
        reset(bench, Memory(0))
        seen.add(name_after(bench, str(number), number + 1))
    assert len(seen) == 3


def test_every_rank_must_have_answered_and_hold_what_it_loaded(socket_path: str) -> None:
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar, world=2) as bench:
        for held, generations in ((LOADED, None), (Memory(0, "other"), 1)):
            bench.shim.reset_cache()
            question = bench.step().question
            hear(bench, question=question, held=LOADED)
            hear(bench, question=question, held=LOADED)  # one rank's word counts once
            assert bench.step().question == question
            hear(bench, question=question, held=held, rank=1)
            assert bench.step().question == 0
            assert bench.shim.counters.snapshot().get("generations") == generations


def test_an_answer_to_an_earlier_question_says_nothing_of_the_present_one(bench: Bench) -> None:
    bench.shim.reset_cache()
    early = bench.step().question
    bench.shim.reset_cache()
    late = bench.step().question
    hear(bench, question=early, held=LOADED)
    assert bench.step().question == late


def test_changed_weights_end_restores_and_saves_until_the_engines_cache_is_emptied(
    bench: Bench,
) -> None:
    empty_cache(bench)
    bench.step()
    hear(bench, question=1)
    bench.step({})
    hear(bench, changed_at=2)
    request = bench.new(Request("a", 41))
    assert bench.ask(request) == NOTHING
    assert bench.step({"a": 8}, a=[1, 2]).saves == []
    empty_cache(bench)
    other = bench.new(Request("b", 41, seed="b"))
    assert bench.ask(other) == ASK_AGAIN
    metadata = bench.step()
    assert metadata.heard == 2
    hear(bench, question=metadata.question)
    assert bench.ask(other) == ASK_AGAIN
    assert bench.prefetch()["req"] == "b"
    saves = bench.step({"b": 8}, b=[3, 4])
    assert len(saves.saves) == 2
    assert saves.namespace == names(bench, 1)[0]


def test_what_waits_to_be_saved_goes_with_its_weights(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SAVE_ITEMS_PER_FRAME_MAX", 1)
    bench.new(Request("a", 41))
    assert len(bench.step({"a": 16}, a=[1, 2, 3, 4]).saves) == 1
    hear(bench, changed_at=1)
    assert bench.pool.referenced == [1]  # that one is being copied
    assert bench.shim.counters.snapshot()["dropped_save_weights_changed"] == 3
    assert bench.step().saves == []


def test_a_change_right_before_the_first_step_after_a_reset_leaves_nothing_old(
    bench: Bench,
) -> None:
    bench.step()
    empty_cache(bench)
    request = bench.new(Request("a", 41))
    assert bench.ask(request) == ASK_AGAIN
    metadata = bench.step()
    hear(bench, question=metadata.question, changed_at=metadata.step)
    assert bench.ask(request) == ASK_AGAIN  # a new look-up: the engine's cache was emptied already
    assert names(bench, 2)[0] != names(bench, 2)[1]


def test_an_engine_whose_workers_do_not_answer_computes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.shim.reset_cache()
    request = bench.new(Request("a", 41))
    monkeypatch.setattr(bench.shim._budget, "stall_s", 0.0)
    assert bench.ask(request) == NOTHING


def test_a_request_that_lives_on_is_looked_up_and_saved_again(bench: Bench) -> None:
    request = bench.new(Request("a", 41))
    prefetch = bench.prefetch()
    bench.held(prefetch, *range(10))
    bench.place(prefetch, 0, *range(10))
    bench.answer(request)
    bench.shim.reset_cache()
    hear(bench, question=bench.step().question)
    assert bench.ask(request) == ASK_AGAIN
    assert len(bench.step({"a": 8}, a=[1, 2]).saves) == 2  # what the old look-up found is not held


def test_what_a_step_computes_that_asks_the_workers_is_saved_in_the_next(bench: Bench) -> None:
    bench.step()
    empty_cache(bench)
    request = bench.new(
        Request("r", 4)
    )  # one block: nothing of it can be restored, so nothing is looked up
    asking = bench.step({"r": 4}, r=[1, 2])
    assert (asking.question > 0, asking.saves) == (True, [])
    hear(bench, question=asking.question)
    request.num_computed_tokens = 4
    request.num_tokens = 5
    assert [item.block_id for item in bench.step({"r": 1}, r=[1, 2]).saves] == [1]


def test_what_a_request_computed_that_ends_before_the_answer_is_saved_after_it(
    bench: Bench,
) -> None:
    bench.step()
    empty_cache(bench)
    request = bench.new(Request("r", 4))
    bench.step({"r": 4}, r=[1, 2])
    request.num_computed_tokens = 4
    bench.pool.cached = {request.block_hashes[0]: 1}
    bench.shim.request_finished(request)
    asking = bench.step()
    assert (asking.question > 0, asking.saves) == (True, [])
    assert bench.shim.has_pending_work()
    hear(bench, question=asking.question, held=LOADED)
    assert [item.block_id for item in bench.step().saves] == [1]
    assert bench.step().saves == []


@pytest.mark.parametrize("empties", [empty_cache, lambda bench: bench.shim.reset_cache()])
def test_an_idle_engine_takes_one_step_to_ask_its_workers(bench: Bench, empties: Any) -> None:
    bench.step()
    assert not bench.shim.has_pending_work()
    empties(bench)
    assert bench.shim.has_pending_work()
    asking = bench.step()
    assert asking.question > 0
    assert not bench.shim.has_pending_work()  # the answer comes with a later step
    hear(bench, question=asking.question, held=LOADED)
    assert bench.step().question == 0


def test_tierkv_that_is_off_asks_nobody(bench: Bench) -> None:
    bench.step()
    bench.shim.turn_off("a test")
    empty_cache(bench)
    assert not bench.shim.has_pending_work()


def test_what_an_ended_request_computed_with_changed_weights_is_not_saved(bench: Bench) -> None:
    bench.step()
    empty_cache(bench)
    request = bench.new(Request("r", 4))
    asking = bench.step({"r": 4}, r=[1, 2])
    request.num_computed_tokens = 4
    bench.pool.cached = {request.block_hashes[0]: 1}
    bench.shim.request_finished(request)
    hear(bench, changed_at=asking.step + 1, question=asking.question)
    assert bench.step().saves == []
    assert not bench.shim.has_pending_work()


def test_a_prompt_waits_for_the_weights_half_as_long_as_it_would_compute(bench: Bench) -> None:
    bench.new(Request("a", 41))
    bench.prefetch()
    assert bench.shim.reset_cache()
    request = bench.new(Request("b", 41, kv_transfer_params={"tierkv": {}}))
    plan = bench.shim._book.get("b")
    assert plan is not None
    bench.shim._budget.stall_s = 0.0
    plan.compute_ms = 3_600_000
    assert bench.ask(request) == ASK_AGAIN
    assert bench.ask(request) == ASK_AGAIN
    plan.compute_ms = None  # not known: no longer than a stall
    assert bench.ask(request) == NOTHING
    assert bench.shim.counters.get("restores_unnamed") == 1
    bench.shim.update_state_after_alloc(request, None, 0)
    # The first one is the plan under the name before the reset.
    assert [frame.get("why") for frame in bench.fake.expect("release", 2)] == [
        None,
        "weights_unread",
    ]
    # The client's report has the sidecar's word.
    assert bench.shim.request_finished(request) == {
        "tierkv": {"restored_tokens": 0, "why": "weights_unread"}
    }


@pytest.mark.parametrize(("restored", "why"), [(0, "weights_unread"), (16, "")])
def test_a_report_names_the_weights_also_after_their_change_was_seen(
    bench: Bench, restored: int, why: str
) -> None:
    request = bench.new(Request("a", 41, kv_transfer_params={"tierkv": {}}))
    bench.prefetch()
    state = bench.shim._requests["a"]
    state.given.tokens = restored
    state.forget_blocks()
    told = (bench.shim.request_finished(request) or {})["tierkv"]
    assert (told["restored_tokens"], told.get("why", "")) == (restored, why)
