"""Owns the time that an engine spends in our calls, payload copies apart (goal G8); put around a shim from outside."""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from tierkv.connectors.vllm.pages.copies import Batch, CpuCopier

if TYPE_CHECKING:
    from collections.abc import Callable

#: Calls of a half that run on the engine's thread.
CALLS: Final = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "handle_preemptions",
    "begin_step",
    "start_load_kv",
    "wait_for_save",
    "take_finished",
    "take_receipts",
)
SAMPLES_MAX: Final = 8192


class StepClock:
    """Keeps the last samples in seconds; `copied` time is taken out of the call that contains it."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=SAMPLES_MAX)
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
        self.max_s = max(self.max_s, own)

    def quantile(self, share: float) -> float:
        """Seconds below which `share` (0..1) of the kept samples lie; 0 without samples."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Give a call that is timed, also where it fails."""

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.record(time.perf_counter() - started)

        return timed


def clock_of(half: Any) -> StepClock:
    """Time a half of a shim from now on; a worker's tensors are registered already."""
    clock = StepClock()
    for name in CALLS:
        if hasattr(half, name):
            setattr(half, name, clock.timed(getattr(half, name)))
    copier = vars(half).get("_copier")
    if isinstance(copier, CpuCopier):
        run = copier._run  # noqa: SLF001 - what copies is told apart

        def noted(batch: Batch, *, to_slot: bool) -> None:
            run(batch, to_slot=to_slot)
            clock.copied(batch.seconds, len(batch.pairs) * batch.pages.group.block_bytes)

        vars(copier)["_run"] = noted
    return clock
