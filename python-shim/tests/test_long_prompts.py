"""Prompts of up to a million tokens: nothing raises, all of it comes back, and the cost grows with length only."""

import logging
import time
from typing import Any

import pytest
from tierkv.connectors.vllm import limits

from .support.engine import Request, make_group
from .support.scheduler import NOTHING, Bench

pytestmark = pytest.mark.usefixtures("engine_core_started")

BLOCK = 16
MILLION = 1 << 20
#: Blocks that the sidecar places with one frame.
WINDOW = 512


@pytest.fixture
def shape() -> dict[str, Any]:
    return {"groups": [make_group(tokens=BLOCK)]}


def long_request(name: str, tokens: int) -> Request:
    request = Request(name, 4)
    request.num_tokens = tokens
    request.block_hashes = [number.to_bytes(32, "little") for number in range(tokens // 4)]
    return request


def restore(bench: Bench, name: str, tokens: int, number: int) -> float:
    """Restores all but the last block of a prompt; processor seconds that the engine's thread spent in our calls."""
    request = long_request(name, tokens)
    count = tokens // BLOCK - 1
    spent = -time.thread_time()
    bench.new(request)
    spent += time.thread_time()
    prefetch = bench.prefetch(number)
    assert len(prefetch["groups"][0]["hashes"]) == 32 * count
    bench.boundary(prefetch, count * BLOCK, {0: b"\xff" * (count // 8 + 1)})
    for first in range(0, count, WINDOW):
        bench.place(prefetch, first, *range(first, min(first + WINDOW, count)))
    bench.done(prefetch)
    assert bench.answer(request) == (count * BLOCK, True)
    spent -= time.thread_time()
    assert bench.ask(request) == (count * BLOCK, True)
    bench.admit(request, list(range(1, count + 1)), count * BLOCK)
    spent += time.thread_time()
    loaded: list[int] = []
    while not loaded or len(loaded) < count:
        spent -= time.thread_time()
        step = bench.step()
        spent += time.thread_time()
        loaded += [block for part in step.loads for block in part.block_ids]
    assert loaded == list(range(1, count + 1))
    bench.finish_load(name)
    return spent


def test_a_million_tokens_are_asked_for_and_loaded(bench: Bench) -> None:
    restore(bench, "r", MILLION, 1)
    assert bench.shim.counters.get("tokens_restored") == MILLION - BLOCK
    assert bench.shim.counters.get("prompts_cut") == 0


def test_cost_grows_no_faster_than_length(bench: Bench) -> None:
    short, long = MILLION // 16, MILLION
    costs = {short: 1e9, long: 1e9}
    for turn in range(3):
        for at, tokens in enumerate(costs):
            number = 1 + turn * 2 + at
            costs[tokens] = min(costs[tokens], restore(bench, f"r{number}", tokens, number))
    per_block = {tokens: 1e6 * spent / (tokens // BLOCK) for tokens, spent in costs.items()}
    print(f"us of the engine's thread per block, by tokens: {per_block}")  # noqa: T201
    # Quadratic would be 256 times as much; caches of a loaded machine are cold some of the time.
    assert costs[long] < 50 * costs[short]


def test_what_is_beyond_one_question_is_counted_told_and_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    most = limits.PLAN_HASHES_MAX * BLOCK
    with caplog.at_level(logging.WARNING, "tierkv.shim"):
        for name in "ab":
            bench.new(long_request(name, most + 3 * BLOCK + 1))
    prefetch = bench.prefetch()
    assert prefetch["beyond"] == 3 * BLOCK
    assert len(prefetch["groups"][0]["hashes"]) == 32 * limits.PLAN_HASHES_MAX
    assert bench.shim.counters.get("prompts_cut") == 2
    assert caplog.text.count("the most of one look-up") == 1


def test_a_sidecar_that_looks_up_less_than_was_asked_leaves_the_rest_to_be_saved(
    bench: Bench,
) -> None:
    request = bench.new(long_request("r", 24 * BLOCK + 1))
    prefetch = bench.prefetch()
    bench.boundary(prefetch, 0, {0: b"\xff"})  # eight of 24 blocks
    bench.done(prefetch, "end_of_hit")
    assert bench.answer(request) == NOTHING
    bench.admit(request, list(range(1, 26)), 0)
    step = bench.step({"r": 24 * BLOCK}, r=list(range(1, 26)))
    assert [item.block_id for item in step.saves] == list(range(9, 25))


def test_a_burst_of_long_prompts_costs_misses_and_no_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_QUEUE_BYTES_MAX", 4 << 20)
    requests = [long_request(f"r{number}", MILLION) for number in range(8)]
    for number, request in enumerate(requests):
        request.block_hashes[0] = bytes([number] * 32)
    bench.fake.reads.clear()  # the sidecar is busy elsewhere
    for request in requests:
        bench.new(request)
    assert bench.shim.counters.get("prefetches_unsent") > 0
    assert bench.ask(requests[-1]) == NOTHING
    bench.fake.reads.set()
    bench.prefetch()
    assert bench.shim._channel.is_up
    assert len(bench.fake.hellos) == 1
