"""Owns the calls of CUDA that copies need: everything around them is logic, which tests run on a CPU in their place."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A place in a stream."""

    def record(self, stream: Any) -> None:
        """Put it behind what is queued on a stream so far."""

    def query(self) -> bool:
        """Tell whether the stream has come to it."""
        raise NotImplementedError

    def elapsed_time(self, end: Any) -> float:
        """Give the milliseconds from here to a later place that the stream has come to."""
        raise NotImplementedError


class Calls(Protocol):
    """What a copier asks of its device."""

    def stream(self) -> Any:
        """Make a stream; it has `wait_stream` and `synchronize`."""

    def current(self) -> Any:
        """Give the stream that the engine computes on."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue what follows on a stream."""
        raise NotImplementedError

    def event(self) -> Event:
        """Make an event."""
        raise NotImplementedError

    def indices(self, numbers: list[int]) -> torch.Tensor:
        """Give whole numbers as int64 on the device, for what is queued next."""
        raise NotImplementedError

    def pin(self, memory: torch.Tensor) -> bool:
        """Let the device read and write host memory by itself; False where it refuses."""
        raise NotImplementedError

    def unpin(self, memory: torch.Tensor) -> None:
        """Take that back."""


class Cuda:
    """CUDA's own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Any:
        return torch.cuda.Stream(self._device)

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def event(self) -> Event:
        made: Event = torch.cuda.Event(enable_timing=True)
        return made

    def indices(self, numbers: list[int]) -> torch.Tensor:
        pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=True)
        return pinned.to(self._device, non_blocking=True)

    def pin(self, memory: torch.Tensor) -> bool:
        with torch.cuda.device(self._device):  # the calling thread has no device yet
            register = torch.cuda.cudart().cudaHostRegister
            return int(register(memory.data_ptr(), memory.numel(), 0)) == 0

    def unpin(self, memory: torch.Tensor) -> None:
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
