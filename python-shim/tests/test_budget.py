"""The restore budget: time runs from when the engine could begin a request, and the sidecar hears of it then."""

import time
from collections.abc import Iterator

import pytest
from tierkv.connectors.vllm import limits

from .support.engine import BLOCK_TOKENS, Request
from .support.scheduler import ASK_AGAIN, Bench
from .support.sidecar import FakeSidecar, wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")

#: A request of 31 blocks in a pool of 32.
LONG = 31 * BLOCK_TOKENS


@pytest.fixture
def bench(socket_path: str) -> Iterator[Bench]:
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar) as bench:
        bench.step({"other": 1})
        yield bench


def expire(bench: Bench) -> None:
    bench.shim._budget.wait_s = bench.shim._budget.stall_s = 0.0


def test_requests_that_one_step_could_not_begin_together_lose_no_time(bench: Bench) -> None:
    first, second = bench.new(Request("a", LONG)), bench.new(Request("b", LONG, seed="b"))
    for request in (first, second):
        assert bench.ask(request) == ASK_AGAIN
    (asked,) = bench.fake.expect("asked")
    assert asked["req"] == "a"
    expire(bench)
    assert bench.ask(second) == ASK_AGAIN
    bench.step({"other": 1})
    assert bench.ask(first) != ASK_AGAIN
    bench.step({"other": 1})
    assert bench.ask(second) != ASK_AGAIN  # now it could begin, and no word came in no time


def test_tokens_of_a_step_are_shared_too(bench: Bench) -> None:
    bench.shim._budget.room._step_tokens = 2 * BLOCK_TOKENS
    short = 2 * BLOCK_TOKENS
    for name in ("a", "b"):
        assert bench.ask(bench.new(Request(name, short, seed=name))) == ASK_AGAIN
    assert [frame["req"] for frame in bench.fake.expect("asked")] == ["a"]


def test_blocks_in_use_are_no_room_until_the_engine_is_idle(bench: Bench) -> None:
    bench.pool.touch(bench.pool.blocks[:8])
    request = bench.new(Request("a", LONG))
    assert bench.ask(request) == ASK_AGAIN
    bench.step()  # computes nothing: whatever holds those blocks, nobody else would be served
    assert bench.ask(request) == ASK_AGAIN
    assert bench.fake.expect("asked")[0]["req"] == "a"


def test_a_request_without_room_is_not_passed_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NO_ROOM_WAIT_S", 0.05)
    bench.pool.touch(bench.pool.blocks[:8])
    request = bench.new(Request("a", LONG))
    assert bench.ask(request) == ASK_AGAIN
    time.sleep(0.1)
    assert bench.ask(request) == ASK_AGAIN
    assert bench.fake.expect("asked")[0]["req"] == "a"


def test_slots_of_what_vllm_has_no_room_for_are_its_own(bench: Bench) -> None:
    request = bench.new(Request("a", 3 * BLOCK_TOKENS))
    prefetch = bench.prefetch()
    bench.held(prefetch, 0, 1)
    bench.place(prefetch, 0, 7, 8)
    bench.done(prefetch)
    plan = bench.shim._book.get("a")
    assert plan is not None
    wait_until(lambda: plan.is_done, "the end of the plan")
    offer = bench.ask(request)
    assert offer != ASK_AGAIN
    assert "asked" not in bench.kinds()
    assert bench.ask(request) == offer
    assert bench.fake.expect("asked")[0]["plan"] == plan.plan_id
