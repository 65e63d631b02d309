"""Owns the CUDA calls that copies need, so that tests can run the logic around them on a CPU."""

from contextlib import AbstractContextManager
from typing import Any

import torch


class Cuda:
    """Device calls of a copier. An event has `record`, `query` and `elapsed_time` as torch.cuda.Event has."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Any:
        """Make a stream; it has `wait_stream` and `synchronize`."""
        return torch.cuda.Stream(self._device)

    def current(self) -> Any:
        """Give the stream that the engine computes on."""
        return torch.cuda.current_stream(self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)

    def indices(self, numbers: list[int]) -> torch.Tensor:
        """Give numbers as int64 on the device, for the calls queued next."""
        pinned = torch.tensor(numbers, dtype=torch.int64, pin_memory=True)
        return pinned.to(self._device, non_blocking=True)

    def pin(self, memory: torch.Tensor) -> bool:
        """Pin host memory for direct access by the device; False where it refuses."""
        with torch.cuda.device(self._device):  # the calling thread has no device of its own
            register = torch.cuda.cudart().cudaHostRegister
            return int(register(memory.data_ptr(), memory.numel(), 0)) == 0

    def unpin(self, memory: torch.Tensor) -> None:
        """End that; likewise on a thread without a device."""
        with torch.cuda.device(self._device):
            torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
