"""Measures the time the engine spends in our calls, payload copies apart (goal G8 in the reliability notes)."""

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tierkv.connectors.vllm import limits

P = ParamSpec("P")
R = TypeVar("R")


class StepClock:
    """Keeps the last samples in seconds; `copied` time is taken out of the call that contains it."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=limits.TIMING_SAMPLES_MAX)
        self.max_s = 0.0
        self.copy_s = 0.0
        self.copy_bytes = 0
        self._copied_in_call = 0.0

    def copied(self, seconds: float, copied_bytes: int) -> None:
        self._copied_in_call += seconds
        self.copy_s += seconds
        self.copy_bytes += copied_bytes

    def record(self, seconds: float) -> None:
        own = seconds - self._copied_in_call
        self._copied_in_call = 0.0
        self.samples.append(own)
        if own > self.max_s:  # noqa: PLR1730 - a call fewer on the step path
            self.max_s = own

    def quantile(self, share: float) -> float:
        """Seconds below which `share` (0..1) of the kept samples lie; 0 without samples."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def on_step_path(method: Callable[P, R]) -> Callable[P, R]:
    """Times a method of an object that has a `clock`; used on every call that runs on the engine's thread."""

    @functools.wraps(method)
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        owner: Any = args[0]
        started = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            owner.clock.record(time.perf_counter() - started)

    return timed
