"""The step clock and the counters: copies taken out, quantiles of what was kept, differences reported once."""

import time

import pytest
from lab.step_clock import SAMPLES_MAX, StepClock
from tierkv.connectors.vllm.link.counters import Counters


def test_a_call_is_timed_without_its_copies() -> None:
    clock = StepClock()

    @clock.timed
    def call(sleep_s: float, copied_s: float = 0.0) -> str:
        time.sleep(sleep_s)
        clock.copied(copied_s, 100)
        return "done"

    assert call(0.03, copied_s=0.02) == "done"
    call(0.03)
    with_copy, without = clock.samples
    assert with_copy == pytest.approx(without - 0.02, abs=0.015)
    assert clock.max_s == max(with_copy, without)
    assert (clock.copy_s, clock.copy_bytes) == (0.02, 200)


def test_a_failing_call_is_timed_too() -> None:
    clock = StepClock()
    with pytest.raises(ZeroDivisionError):
        clock.timed(lambda: 1 / 0)()
    assert len(clock.samples) == 1


def test_quantiles_are_of_the_kept_samples() -> None:
    clock = StepClock()
    assert clock.quantile(0.5) == 0.0
    for number in range(100):
        clock.record(float(number))
    assert [clock.quantile(share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 99.0]


def test_samples_are_bounded() -> None:
    clock = StepClock()
    for _ in range(SAMPLES_MAX + 10):
        clock.record(0.001)
    assert len(clock.samples) == SAMPLES_MAX


def test_counters_report_each_difference_once() -> None:
    counters = Counters()
    counters.add("a", 2)
    counters.add("b", 0)
    assert counters.take_changes() == {"a": 2}
    assert counters.take_changes() == {}
    counters.add("a")
    assert counters.take_changes() == {"a": 1}
    assert (counters.get("a"), counters.get("b"), counters.snapshot()) == (3, 0, {"a": 3})
