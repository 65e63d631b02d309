"""The step clock and the counters: copies taken out, quantiles of what was kept, differences reported once."""

import time

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.timing import StepClock, on_step_path


class Half:
    """Something with a clock."""

    def __init__(self) -> None:
        self.clock = StepClock()

    @on_step_path
    def call(self, sleep_s: float, copied_s: float = 0.0) -> str:
        time.sleep(sleep_s)
        self.clock.copied(copied_s, 100)
        return "done"

    @on_step_path
    def fail(self) -> None:
        raise RuntimeError("boom")


def test_a_call_is_timed_without_its_copies() -> None:
    half = Half()
    assert half.call(0.03, copied_s=0.02) == "done"
    half.call(0.03)
    with_copy, without = half.clock.samples
    assert with_copy == pytest.approx(without - 0.02, abs=0.015)
    assert half.clock.max_s == max(with_copy, without)
    assert (half.clock.copy_s, half.clock.copy_bytes) == (0.02, 200)


def test_a_failing_call_is_timed_too() -> None:
    half = Half()
    with pytest.raises(RuntimeError, match="boom"):
        half.fail()
    assert len(half.clock.samples) == 1


def test_quantiles_are_of_the_kept_samples() -> None:
    clock = StepClock()
    assert clock.quantile(0.5) == 0.0
    for number in range(100):
        clock.record(float(number))
    assert [clock.quantile(share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 99.0]


def test_samples_are_bounded() -> None:
    clock = StepClock()
    for _ in range(limits.TIMING_SAMPLES_MAX + 10):
        clock.record(0.001)
    assert len(clock.samples) == limits.TIMING_SAMPLES_MAX


def test_counters_report_each_difference_once() -> None:
    counters = Counters()
    counters.add("a", 2)
    counters.add("b", 0)
    assert counters.take_changes() == {"a": 2}
    assert counters.take_changes() == {}
    counters.add("a")
    assert counters.take_changes() == {"a": 1}
    assert (counters.get("a"), counters.get("b"), counters.snapshot()) == (3, 0, {"a": 3})
