"""Workers as on a GPU: copies are done steps after they were queued, and half of a step's blocks have no slot yet.

The bytes move at once. Slots fall short with asynchronous scheduling, which vLLM has not on a CPU.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from tierkv.connectors.vllm import worker
from tierkv.connectors.vllm.copies import Copier, CudaCopier
from tierkv.connectors.vllm.credits import Credits
from tierkv.connectors.vllm.timing import StepClock


class _Stream:
    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    def __init__(self, late_s: float) -> None:
        self._late_s = late_s
        self._passes_at = float("inf")

    def record(self, _stream: Any) -> None:
        self._passes_at = time.monotonic() + self._late_s

    def query(self) -> bool:
        return time.monotonic() >= self._passes_at

    def elapsed_time(self, _end: Any) -> float:
        return self._late_s * 1000


class _Calls:
    """The calls of cuda.py."""

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s

    def stream(self) -> Any:
        return _Stream()

    def current(self) -> Any:
        return _Stream()

    def on(self, stream: Any) -> Any:
        return contextlib.nullcontext(stream)

    def event(self) -> Any:
        return _Event(self._late_s)

    def indices(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers)

    def pin(self, memory: torch.Tensor) -> bool:
        return memory.numel() > 0

    def unpin(self, memory: torch.Tensor) -> None: ...


def install(late_s: float) -> None:
    """Have workers of this process be so."""
    take = Credits.take

    def take_half(free: Credits, most: int) -> Any:
        return take(free, max(1, most // 2))

    def make_copier(device: torch.device, clock: StepClock) -> Copier:
        del clock
        return CudaCopier(device, _Calls(late_s))

    setattr(worker, "make_copier", make_copier)  # noqa: B010 - not exported, as mypy sees it
    setattr(Credits, "take", take_half)  # noqa: B010 - a method
