"""Imitates workers on a GPU: copies finish steps after they were queued, and half of a step's blocks have no slot yet.

The bytes move at once. Missing slots imitate asynchronous scheduling, which vLLM lacks on a CPU.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tierkv.connectors.vllm.engine import worker
from tierkv.connectors.vllm.pages.copies import Copier, CudaCopier
from tierkv.connectors.vllm.pages.credits import Credits


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


def install(late_s: float) -> None:
    """Make workers of this process late. The GPU kit's calls replace CUDA's for the copies."""
    sys.path.append(str(Path(__file__).parents[3] / "bench" / "gpu"))
    take = Credits.take

    def take_half(free: Credits, most: int) -> Any:
        return take(free, max(1, most // 2))

    def make_copier(device: torch.device) -> Copier:
        calls = import_module("device").ProcessorCalls()
        calls.event = lambda: _Event(late_s)
        return CudaCopier(device, calls)

    setattr(worker, "make_copier", make_copier)  # noqa: B010 - not exported, as mypy sees it
    setattr(Credits, "take", take_half)  # noqa: B010 - a method
