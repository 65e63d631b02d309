"""Steps in which the engine waits for the sidecar: only one that computes nothing waits for the sidecar's word."""

import threading
import time

import pytest
from tierkv.connectors.vllm import limits

from .support.engine import Request
from .support.scheduler import ASK_AGAIN, NOTHING, Bench

#: Only a step that waits in vain takes so long.
LONG_S = 5.0


def test_only_a_step_that_waits_and_computes_nothing_sleeps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()
    monkeypatch.setattr(bench.shim._idle._heard, "wait", waited.append)
    request = bench.new(Request("r", 16))
    bench.prefetch()
    assert bench.ask(request) == ASK_AGAIN
    bench.step({})
    assert waited == [limits.IDLE_STEP_S]
    bench.step({})  # nobody waits
    assert bench.ask(request) == ASK_AGAIN
    bench.step({"other": 1}, other=[1])
    bench.step({})
    assert len(waited) == 1


def step_ends_early(bench: Bench) -> bool:
    begun = time.monotonic()
    bench.step({})
    return time.monotonic() - begun < LONG_S / 2


def test_what_the_helper_thread_hears_ends_the_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IDLE_STEP_S", LONG_S)
    bench.step({})  # what was heard before is forgotten
    request = bench.new(Request("r", 16))
    prefetch = bench.prefetch()
    for tell in (
        lambda: bench.held(prefetch, 0),
        lambda: bench.done(prefetch, "not_held"),
    ):
        assert bench.ask(request) == ASK_AGAIN
        threading.Timer(0.05, tell).start()
        assert step_ends_early(bench)
    assert bench.ask(request) == NOTHING

    # A word that comes between the question and the end of its step is not waited for again.
    second = bench.new(Request("s", 16))
    prefetch = bench.prefetch(2)
    assert bench.ask(second) == ASK_AGAIN
    bench.done(prefetch, "not_held")
    assert step_ends_early(bench)


def test_a_sidecar_that_goes_ends_the_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IDLE_STEP_S", LONG_S)
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", LONG_S)
    bench.step({})
    request = bench.new(Request("r", 16))
    bench.prefetch()
    assert bench.ask(request) == ASK_AGAIN
    threading.Timer(0.05, bench.fake.drop_connections).start()
    assert step_ends_early(bench)
    assert bench.ask(request) == NOTHING
