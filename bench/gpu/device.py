"""Owns the machine that the kit runs on: a GPU, or a CPU in place of one."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch
from tierkv.connectors.vllm.pages.cuda import Cuda

if TYPE_CHECKING:
    from collections.abc import Callable


#: About 0.2 s on a GPU of 1 to 2 GHz.
HOLD_CYCLES = 300_000_000


class Gpu:
    """An NVIDIA GPU."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name()
        self.calls = Cuda(self.device)

    def wait(self) -> None:
        torch.cuda.synchronize()

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def seconds(self, work: Callable[[], None], beside: Callable[[], None] | None = None) -> float:
        """Return the device's time for `work` by its own clock; work queued by `beside` starts at the same moment."""
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        if beside is not None:
            torch.cuda._sleep(HOLD_CYCLES)  # noqa: SLF001 - until everything is queued
            beside()
        first.record()
        work()
        last.record()
        self.wait()
        return float(first.elapsed_time(last)) / 1000


class _Stream:
    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Event:
    def record(self, stream: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 0.0


class ProcessorCalls:
    """The calls of cuda.py on a CPU, where every copy is done when it returns."""

    def stream(self) -> Any:
        return _Stream()

    def current(self) -> Any:
        return _Stream()

    def on(self, stream: Any) -> Any:
        return contextlib.nullcontext(stream)

    def event(self) -> Any:
        return _Event()

    def indices(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers)

    def pin(self, memory: torch.Tensor) -> bool:
        return memory.numel() > 0

    def unpin(self, memory: torch.Tensor) -> None: ...


class Processor:
    """This machine's processor."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.name = "processor in place of a GPU"
        self.calls = ProcessorCalls()

    def wait(self) -> None: ...

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def seconds(self, work: Callable[[], None], beside: Callable[[], None] | None = None) -> float:
        started = time.perf_counter()
        if beside is not None:
            beside()
        work()
        return time.perf_counter() - started
