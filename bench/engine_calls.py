"""Owns the timing of single calls on an engine's thread: processor and wall time, a control beside each, the slowest.

The control is a loop of pure Python after each call, about as long; its excess over the usual time is the machine's.
"""

import gc
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

from lab.step_clock import CALLS

SLOWEST_KEPT = 12
CALIBRATION_LOOPS = 20_000
CALIBRATION_ROUNDS = 200


def spin(loops: int) -> None:
    """Takes time in the interpreter only: makes no call that could release the lock."""
    for _ in range(loops):
        pass


def loops_of(seconds: float) -> int:
    """Returns the loops of `spin` that take this long at best."""
    best = float("inf")
    for _ in range(CALIBRATION_ROUNDS):
        started = time.perf_counter()
        spin(CALIBRATION_LOOPS)
        best = min(best, time.perf_counter() - started)
    return max(1, round(seconds / best * CALIBRATION_LOOPS))


class Watch:
    """Wraps every timed call of one half of the shim. Times are in seconds, without payload copies."""

    def __init__(self) -> None:
        self.loops = 0
        self.restart()
        self._copy_cpu_s = self._copy_wall_s = 0.0
        self._collecting_s = 0.0
        gc.callbacks.append(self._on_collection)

    def restart(self) -> None:
        """Forgets all measurements."""
        self.cpu_s = self.control_s = 0.0
        self.walls: list[float] = []
        self.slowest: list[dict[str, Any]] = []

    def take(self) -> tuple[float, float]:
        """Returns processor time and control of the calls since the last call of this."""
        taken = self.cpu_s, self.control_s
        self.cpu_s = self.control_s = 0.0
        return taken

    def calibrate(self) -> None:
        """Makes the control as long as the median call so far."""
        self.loops = loops_of(statistics.median(self.walls))

    def over(self, half: Any, copies: dict[int, Any]) -> None:
        """Wraps the calls of `half`, and the page copies of each group."""
        for name in CALLS:
            if hasattr(half, name):
                setattr(half, name, self._watched(name, getattr(half, name)))
        for pages in copies.values():
            pages.copy = self._copying(pages.copy)

    def _copying(self, copy: Callable[..., None]) -> Callable[..., None]:
        def copied(*args: Any, **kwargs: Any) -> None:
            wall, cpu = time.perf_counter(), time.thread_time()
            copy(*args, **kwargs)
            self._copy_cpu_s += time.thread_time() - cpu
            self._copy_wall_s += time.perf_counter() - wall

        return copied

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._copy_cpu_s = self._copy_wall_s = self._collecting_s = 0.0
            before = resource.getrusage(resource.RUSAGE_THREAD)
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                own_cpu = time.thread_time() - cpu - self._copy_cpu_s
                own = time.perf_counter() - wall - self._copy_wall_s
                after = resource.getrusage(resource.RUSAGE_THREAD)
                self.cpu_s += own_cpu
                self.walls.append(own)
                self._keep(name, own, own_cpu, before, after)
                started = time.perf_counter()
                spin(self.loops)
                self.control_s += time.perf_counter() - started

        return watched

    def _keep(self, name: str, own: float, own_cpu: float, before: Any, after: Any) -> None:
        if len(self.slowest) == SLOWEST_KEPT and own <= self.slowest[-1]["wall"]:
            return
        seen = {
            "call": name,
            "wall": own,
            "cpu": own_cpu,
            "gc": self._collecting_s,
            "waited": after.ru_nvcsw - before.ru_nvcsw,
            "preempted": after.ru_nivcsw - before.ru_nivcsw,
            "faults": after.ru_minflt - before.ru_minflt,
        }
        self.slowest = sorted([*self.slowest, seen], key=lambda one: -one["wall"])[:SLOWEST_KEPT]

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        del info
        now = time.perf_counter()
        self._collecting_s += -now if phase == "start" else now
