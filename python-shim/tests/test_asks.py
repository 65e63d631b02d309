"""Requests that wait: without news none is looked at again, of those with news a step looks at a few, none starves."""

import sys
from collections import Counter
from typing import Any

import pytest
from tierkv.connectors.vllm import limits

from .support.engine import BLOCK_TOKENS, Request, connector_of
from .support.scheduler import ASK_AGAIN, NOTHING, Bench
from .support.sidecar import wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")

BLOCKS = 3
RESTORED = (BLOCKS * BLOCK_TOKENS, True)
#: Calls of Python for a request that waits on. Measured: 10.5.
CALLS_MAX = 11


def crowd(bench: Bench, count: int) -> list[Request]:
    bench.shim._budget.wait_s = bench.shim._budget.stall_s = 600.0
    names = [f"r{number}" for number in range(count)]
    return [bench.new(Request(name, BLOCKS * BLOCK_TOKENS + 1, seed=name)) for name in names]


def looks(bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(limits, "ASKS_PER_STEP_MAX", count)
    bench.step({"other": 1})


def place_all(bench: Bench, requests: list[Request]) -> None:
    for number, request in enumerate(requests):
        prefetch = next(
            one
            for one in bench.fake.expect("prefetch", len(requests))
            if one["req"] == request.request_id
        )
        bench.held(prefetch, *range(BLOCKS))
        bench.place(prefetch, 0, *range(number * BLOCKS, (number + 1) * BLOCKS))
        bench.done(prefetch)
    plans = [bench.shim._book.get(request.request_id) for request in requests]
    wait_until(lambda: all(plan and plan.done_reason for plan in plans), "all are placed")


def test_a_step_looks_at_a_few_of_many_with_news_and_at_all_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = crowd(bench, 5)
    place_all(bench, requests)
    looks(bench, monkeypatch, 2)
    answered = []
    while requests:
        answers = [bench.ask(request) for request in requests]
        told = [
            request for request, said in zip(requests, answers, strict=True) if said == RESTORED
        ]
        assert answers.count(ASK_AGAIN) == len(requests) - len(told)
        answered.append(len(told))
        for request in told:
            bench.admit(request, [1, 2, 3], RESTORED[0])
            requests.remove(request)
        bench.step({"other": 1})
    assert answered == [2, 2, 1]
    assert bench.shim.counters.get("asks_put_off") == 4


def test_one_whose_time_is_over_is_answered_however_many_there_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (request,) = crowd(bench, 1)
    assert bench.ask(request) == ASK_AGAIN
    looks(bench, monkeypatch, 0)
    assert bench.ask(request) == ASK_AGAIN
    bench.shim._budget.wait_s = 0.0
    assert bench.ask(request) == NOTHING


def test_one_whose_plan_is_gone_is_planned_anew_however_many_there_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (request,) = crowd(bench, 1)
    assert bench.ask(request) == ASK_AGAIN
    looks(bench, monkeypatch, 0)
    bench.shim._book.closed()
    assert bench.ask(request) == ASK_AGAIN
    assert bench.prefetch(2)["req"] == request.request_id


def test_without_news_a_request_costs_a_few_calls(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 24
    monkeypatch.setattr(bench.pool, "get_num_free_blocks", lambda: 32)  # the stand-in's counts
    requests = crowd(bench, count)
    connector = connector_of(bench.shim)
    called: Counter[str] = Counter()

    def ask_all() -> list[Any]:
        return [connector.get_num_new_matched_tokens(request, 0) for request in requests]

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called[frame.f_code.co_name] += 1

    ask_all()  # each is looked at
    bench.step({"other": 1})
    sys.setprofile(note)
    try:
        answers = ask_all()
    finally:
        sys.setprofile(None)
    assert answers == [ASK_AGAIN] * count
    assert called["_match"] <= 1  # of the one whose time began with this step
    assert called.total() <= CALLS_MAX * count, called
