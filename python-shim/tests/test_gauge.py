"""What the shim measures for the cost model: steps by their work, loads by their time, and short prompts left alone."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import StepMetadata
from tierkv.connectors.vllm.engine import gauge
from tierkv.connectors.vllm.engine.gauge import StepGauge, prompt_work
from tierkv.connectors.vllm.link.frames import Frame

from .support.engine import BLOCK_TOKENS, Request, step_output
from .support.scheduler import NOTHING, Bench
from .support.sidecar import FakeSidecar, wait_until
from .support.worker import Rank

pytestmark = pytest.mark.usefixtures("engine_core_started")


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(gauge, "time", SimpleNamespace(perf_counter=lambda: self.now_s))


def kept(computed: int) -> Any:
    return SimpleNamespace(request=SimpleNamespace(num_computed_tokens=computed))


def test_a_steps_work_is_its_tokens_and_the_pairs_before_them() -> None:
    requests = {"a": kept(100), "b": kept(0)}
    assert prompt_work({"a": 20, "b": 40}, requests) == (60, 20 * 100 + 200 + 800)


def test_steps_that_only_decode_or_hold_strangers_teach_nothing() -> None:
    fewest = limits.STEP_TOKENS_MIN
    assert prompt_work({"a": fewest - 1}, {"a": kept(0)}) == (0, 0)
    assert prompt_work({"a": fewest, "stranger": fewest}, {"a": kept(0)}) == (0, 0)
    assert prompt_work({}, {}) == (0, 0)


def test_a_step_lasts_until_its_forward_is_done_without_our_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    measured = StepGauge(torch.device("cpu"))
    measured.begin(64, 2048)
    clock.now_s = 0.5
    measured.loaded(0.1)
    measured.end()
    measured.end()
    measured.begin(0, 0)
    measured.end()
    assert measured.take() == {"steps": [[64, 2048, 400_000]]}
    assert measured.take() == {}


@pytest.mark.parametrize(("rank", "expected"), [(0, [[64, 2048]]), (1, [])])
def test_the_sidecar_hears_of_steps_from_rank_0_only(
    socket_path: str, rank: int, expected: list[list[int]]
) -> None:
    with (
        FakeSidecar(socket_path) as sidecar,
        Rank(socket_path, sidecar, world=2, rank=rank) as bench,
    ):
        bench.fake.expect("register")
        step = StepMetadata(has_forward=True, tokens=64, attended=2048)
        bench.shim.begin_step(step)
        bench.shim.start_load_kv(step)
        bench.shim.wait_for_save(step)
        bench.shim.counters.add("seen")

        def counts() -> list[Frame]:
            """The reports up to that of what was counted last."""
            found = [frame for frame in bench.fake.frames if frame["t"] == "counts"]
            return found if any("seen" in frame["counters"] for frame in found) else []

        heard = wait_until(counts, "the count")
        assert [row[:2] for frame in heard for row in frame.get("steps", [])] == expected


def placed_request(bench: Bench) -> Request:
    """Give a request of three blocks, the first two of which are placed."""
    request = bench.new(Request("r", 3 * BLOCK_TOKENS))
    prefetch = bench.prefetch()
    bench.held(prefetch, 0, 1)
    bench.place(prefetch, 0, 7, 8)
    bench.done(prefetch)
    return request


def test_a_release_says_what_was_loaded_and_an_unused_plan_says_nothing(bench: Bench) -> None:
    request = placed_request(bench)
    tokens, _ = bench.answer(request)
    bench.admit(request, [1, 2, 3], tokens or 0)
    bench.finish_load("r")
    unused = bench.new(Request("s", 3 * BLOCK_TOKENS, seed="other"))
    bench.prefetch(2)
    bench.shim.request_finished(unused)
    loaded, dropped = bench.fake.expect("release", 2)
    assert (loaded["tokens"], loaded["begun"]) == (2 * BLOCK_TOKENS, 1)
    assert dropped.keys().isdisjoint({"tokens", "begun"})


def test_a_load_costs_what_its_copies_took_and_no_waiting(bench: Bench) -> None:
    request = placed_request(bench)
    tokens, _ = bench.answer(request)
    bench.admit(request, [1, 2, 3], tokens or 0)
    bench.shim.update_connector_output(step_output(loads={"r": 40, "unknown": 7}))
    bench.finish_load("r", took_us=2)
    (loaded,) = bench.fake.expect("release", 1)
    assert loaded["load_us"] == 42


def test_a_restore_is_timed_from_its_look_up_only_while_vllm_has_no_other_request(
    bench: Bench,
) -> None:
    begun = time.monotonic()
    request = placed_request(bench)
    tokens, _ = bench.answer(request)
    bench.admit(request, [1, 2, 3], tokens or 0)
    bench.finish_load("r")
    beside = bench.new(Request("s", 3 * BLOCK_TOKENS, seed="other"))
    prefetch = bench.prefetch(2)
    bench.held(prefetch, 0, 1)
    bench.place(prefetch, 0, 7, 8)
    bench.done(prefetch)
    tokens, _ = bench.answer(beside)
    bench.admit(beside, [4, 5, 6], tokens or 0)
    bench.finish_load("s")
    alone, among = bench.fake.expect("release", 2)
    assert 0 < alone["took_us"] <= (time.monotonic() - begun) * 1e6
    assert "took_us" not in among


def restored(bench: Bench, **fields: Any) -> Request:
    """Give a request that has the engine to itself, and two of its three blocks restored."""
    request = placed_request(bench)
    for name, value in fields.items():
        setattr(request, name, value)
    tokens, _ = bench.answer(request)
    bench.admit(request, [1, 2, 3], tokens or 0)
    bench.finish_load("r")
    return request


@pytest.mark.parametrize("is_last", [False, True])
def test_a_restored_request_is_timed_from_its_arrival_to_its_first_token(
    bench: Bench, *, is_last: bool
) -> None:
    request = restored(bench, arrival_time=time.time() - 5.0)
    bench.step()
    request.output_token_ids.append(7)
    if is_last:
        bench.shim.request_finished(request)
    else:
        bench.step()
        bench.step()
    (answered,) = bench.fake.expect("answered", 1)
    (released,) = bench.fake.expect("release", 1)
    assert (answered["plan"], answered["tokens"]) == (released["plan"], 3 * BLOCK_TOKENS)
    assert answered["us"] >= 5e6
    assert released["took_us"] < answered["us"]


def test_a_first_token_beside_others_is_not_timed_nor_one_of_a_server_with_another_clock(
    bench: Bench,
) -> None:
    request = restored(bench)
    bench.new(Request("s", 3 * BLOCK_TOKENS, seed="other"))
    request.output_token_ids.append(7)
    bench.step()
    bench.shim.request_finished(request)
    assert not bench.shim._first_tokens.is_awaited
    bench.fake.expect("release", 1)
    for away_s in (-60.0, limits.FIRST_TOKEN_S_MAX + 60):
        timed = SimpleNamespace(request_id="t", arrival_time=time.time() - away_s)
        timed.output_token_ids, timed.num_prompt_tokens = [1], 8
        plan: Any = SimpleNamespace(took_s=1.0, plan_id=9)
        bench.shim._first_tokens.expect(timed, plan)
        bench.shim._first_tokens.look(1)
    # Comes behind what was sent before.
    bench.new(Request("u", 3 * BLOCK_TOKENS, seed="third"))
    bench.prefetch(3)
    assert "answered" not in bench.kinds()


def test_prompts_too_short_to_gain_are_not_asked_for(bench: Bench) -> None:
    bench.fake.send({"t": "pace", "tokens_min": 3 * BLOCK_TOKENS})
    wait_until(lambda: bench.shim._book.tokens_min == 3 * BLOCK_TOKENS, "the threshold")
    short = bench.new(Request("short", 3 * BLOCK_TOKENS))
    assert bench.ask(short) == NOTHING
    assert bench.shim.counters.get("prompts_below_gain") == 1
    bench.new(Request("shorter than a block", BLOCK_TOKENS))
    assert bench.shim.counters.get("prompts_below_block") == 1
    bench.new(Request("long", 4 * BLOCK_TOKENS))
    assert bench.prefetch()["req"] == "long"
