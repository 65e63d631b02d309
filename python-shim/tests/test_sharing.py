"""Requests of one prompt: one look-up, one set of slots, loads in turn; what is lost is nobody's restore."""

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import StepReceipts

from .support.engine import BLOCK_TOKENS, Request, make_group, make_state, step_output
from .support.scheduler import ARENA, ASK_AGAIN, NOTHING, Bench
from .support.sidecar import FakeSidecar, wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")

BLOCKS = 10
TOKENS = BLOCKS * BLOCK_TOKENS + 1
TABLE = list(range(1, BLOCKS + 1))


@pytest.fixture(autouse=True)
def statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's requests have their status as text."""
    monkeypatch.setattr(compat, "is_loading", lambda request: request.status == "loading")
    monkeypatch.setattr(
        compat,
        "takes_slot",
        lambda request: request.status == "running" or request.num_computed_tokens > 0,
    )


def placed(bench: Bench, number: int = 1) -> None:
    prefetch = bench.prefetch(number)
    bench.held(prefetch, *range(BLOCKS))
    bench.place(prefetch, 0, *range(100, 100 + BLOCKS))
    bench.done(prefetch)
    plan = bench.shim._book._by_id[prefetch["plan"]]
    wait_until(lambda: plan.is_done, "it is placed")


def load(bench: Bench, request: Request) -> None:
    assert bench.answer(request) == (40, True)
    bench.admit(request, TABLE, 40)
    request.status, request.num_computed_tokens = "loading", 40


def test_prompts_that_come_together_share_a_look_up_and_its_slots(bench: Bench) -> None:
    first, second = bench.new(Request("a", TOKENS)), bench.new(Request("b", TOKENS))
    placed(bench)
    assert bench.kinds().count("prefetch") == 1
    load(bench, first)
    assert bench.ask(second) == ASK_AGAIN
    bench.step()
    first.status = "running"
    bench.finish_load("a")
    assert bench.releases(1) == [bench.prefetch()["plan"]]
    assert bench.ask(second, 40) == NOTHING
    bench.admit(second, TABLE, 0)
    assert bench.shim.request_finished(second) is None
    assert bench.shim.status()["plans"] == 0
    assert len(bench.releases(1)) == 1


def test_a_shared_look_up_outlives_the_request_that_sent_it(bench: Bench) -> None:
    first, second = bench.new(Request("a", TOKENS)), bench.new(Request("b", TOKENS))
    bench.shim.request_finished(first)
    placed(bench)
    load(bench, second)
    assert "release" not in bench.kinds()
    (part,) = bench.step().loads
    assert (part.req_id, part.slots) == ("b", list(range(100, 110)))
    bench.finish_load("b")
    assert bench.releases(1) == [bench.prefetch()["plan"]]


def test_the_slots_of_an_aborted_leader_are_the_next_ones(bench: Bench) -> None:
    first, second = bench.new(Request("a", TOKENS)), bench.new(Request("b", TOKENS))
    placed(bench)
    load(bench, first)
    bench.step()
    assert bench.ask(second) == ASK_AGAIN
    first.status = "aborted"
    bench.shim.request_finished(first)
    load(bench, second)
    bench.finish_load("a")  # the aborted one's load is reported, too
    assert "release" not in bench.kinds()
    bench.step()
    bench.finish_load("b")
    assert len(bench.releases(1)) == 1
    assert bench.shim.status()["loads"] == 0


def test_a_longer_prompt_is_looked_up_itself_if_that_is_worth_it(bench: Bench) -> None:
    long = TOKENS + 3 * BLOCK_TOKENS
    bench.new(Request("a", TOKENS))
    bench.new(Request("b", long))
    assert len(bench.prefetch(2)["groups"][0]["hashes"]) == 32 * (BLOCKS + 3)
    bench.shim._book.tokens_min = 4 * BLOCK_TOKENS
    third = bench.new(Request("c", long))
    assert bench.shim._requests["c"].shared_tokens == BLOCKS * BLOCK_TOKENS + 3 * BLOCK_TOKENS
    bench.shim.request_finished(third)
    assert bench.kinds().count("prefetch") == 2


def test_of_a_shared_plan_only_the_common_beginning_is_offered_and_known(bench: Bench) -> None:
    bench.shim._book.tokens_min = 3 * BLOCK_TOKENS
    bench.new(Request("a", TOKENS))
    other = Request("b", TOKENS)
    other.block_hashes[8:] = Request("x", TOKENS, seed="x").block_hashes[8:]
    bench.new(other)
    placed(bench)
    assert bench.answer(other) == (8 * BLOCK_TOKENS, True)
    missing = bench.shim._requests["b"].missing
    assert missing is not None
    assert list(missing(0, 0, 10)) == [8, 9]


@pytest.mark.parametrize("reason", ["slower", "end_of_hit"])
def test_what_is_computed_sooner_is_so_for_later_requests_of_the_prompt(
    bench: Bench, reason: str
) -> None:
    first = bench.new(Request("a", TOKENS))
    bench.done(bench.prefetch(), reason)
    plan = bench.shim._book._by_id[1]
    wait_until(lambda: plan.is_done, "the end of the plan")
    second = bench.new(Request("b", TOKENS))
    assert bench.kinds().count("prefetch") == 1
    assert bench.answer(first) == bench.answer(second) == NOTHING
    bench.admit(first, TABLE, 0)
    bench.admit(second, TABLE, 0)
    assert len(bench.releases(1)) == 1


def test_a_plan_that_failed_is_not_shared(bench: Bench) -> None:
    bench.new(Request("a", TOKENS))
    bench.done(bench.prefetch(), "vault_down")
    plan = bench.shim._book._by_id[1]
    wait_until(lambda: plan.is_done, "the end of the plan")
    bench.new(Request("b", TOKENS))
    assert bench.prefetch(2)["req"] == "b"


def test_windows_and_states_are_shared_whole_or_not_at_all(socket_path: str) -> None:
    groups = [make_group(), make_state()]
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar, groups=groups) as bench:
        bench.shim._book.tokens_min = 3 * BLOCK_TOKENS
        bench.new(Request("a", TOKENS))
        bench.new(Request("same", TOKENS))
        other = Request("b", TOKENS)
        other.block_hashes[8:] = Request("x", TOKENS, seed="x").block_hashes[8:]
        bench.new(other)
        assert [frame["req"] for frame in bench.fake.expect("prefetch", 2)] == ["a", "b"]


def test_a_plan_of_a_lost_connection_is_shared_no_more(bench: Bench) -> None:
    bench.new(Request("a", TOKENS))
    bench.prefetch()
    bench.shim._book.closed()
    bench.new(Request("b", TOKENS))
    assert bench.prefetch(2)["req"] == "b"


def test_a_load_that_failed_on_a_rank_is_nobodys_restore(bench: Bench) -> None:
    request = Request("a", TOKENS, kv_transfer_params={"tierkv": {"report": True}})
    bench.new(request)
    placed(bench)
    load(bench, request)
    bench.step()
    output = step_output({"a"})
    output.kv_connector_worker_meta = StepReceipts(failed={"a"})
    bench.shim.update_connector_output(output)
    (release,) = bench.fake.expect("release")
    assert "tokens" not in release
    request.status, request.num_computed_tokens = "waiting", 0
    assert bench.ask(request) == NOTHING  # it is computed, and not tried again
    said = bench.shim.request_finished(request)
    assert said is not None
    assert said["tierkv"]["restored_tokens"] == 0
    assert bench.shim.counters.get("tokens_restored") == 0
    assert bench.shim.counters.get("restores_failed") == 1


def test_followers_wait_for_as_long_as_the_load_was_predicted_to_take(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FOLLOW_LEAST_S", 0.0)
    first, second = bench.new(Request("a", TOKENS)), bench.new(Request("b", TOKENS))
    placed(bench)
    bench.shim._loads._rate = 1e-3
    load(bench, first)
    assert bench.ask(second) == ASK_AGAIN
    leader = bench.shim._leaders.by_id["a"]
    size = BLOCKS * make_group().block_bytes
    now = leader.until_s - limits.FOLLOW_MARGIN * size / 1e-3
    assert leader.leads(now)
    leader.until_s = now
    assert bench.ask(second) == (40, True)


def test_workers_give_up_an_old_arena_once_no_load_reads_it(bench: Bench) -> None:
    assert bench.step().arenas == (ARENA,)
    assert bench.step().arenas == ()
    request = bench.new(Request("a", TOKENS))
    placed(bench)
    load(bench, request)
    bench.shim._book.arena = ARENA + 1
    step = bench.step()
    assert [part.arena for part in step.loads] == [ARENA]
    assert step.arenas == ()  # this very step reads it
    bench.shim.hand_over()
    assert bench.step().arenas == (ARENA + 1,)
    assert bench.step().arenas == ()


def test_a_request_claims_a_slot_once_and_a_preempted_one_holds_none(bench: Bench) -> None:
    bench.shim._running._count = 2
    running, preempted = Request("x", 4, status="running"), Request("y", 4, status="preempted")
    for request in (running, preempted):
        bench.shim.on_new_request(request)
        bench.admit(request, [1], 0)
    first, second = bench.new(Request("a", TOKENS)), bench.new(Request("b", TOKENS, seed="b"))
    placed(bench)
    assert bench.answer(first) == bench.ask(first) == (40, True)
    prefetch = bench.prefetch(2)
    bench.done(prefetch, "end_of_hit")
    assert bench.ask(second) == ASK_AGAIN  # nothing is held of it, and it has no slot
    bench.step()
    bench.shim.request_finished(running)
    assert bench.answer(first) == (40, True)
    assert bench.answer(second) == NOTHING
