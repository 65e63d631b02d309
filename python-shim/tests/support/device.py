"""A device of side streams whose copies are done at once, and count as done when a test says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tierkv.connectors.vllm.pages.cuda import Cuda


class Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name = name
        self._said = said

    def wait_stream(self, other: "Stream") -> None:
        self._said.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "Event") -> None:
        self._said.append(f"{self.name} waits for event {event.number}")

    def synchronize(self) -> None:
        self._said.append(f"{self.name} ends")


class Event:
    def __init__(self, number: int) -> None:
        self.number = number
        self.stream: Any = None
        self.has_passed = False

    def record(self, stream: Any) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.has_passed

    def elapsed_time(self, end: "Event") -> float:
        assert end.has_passed
        return 2.5


class Device(Cuda):
    """Calls of CUDA that say what was asked, and whose events pass when the test says so."""

    def __init__(self, *, pins: bool = True) -> None:
        self.said: list[str] = []
        self.events: list[Event] = []
        self.pinned: list[int] = []
        self.pins = pins
        self._engine = Stream("engine", self.said)
        self._names = iter(("saves", "saves 2", "loads", "loads 2"))

    def stream(self) -> Stream:
        return Stream(next(self._names), self.said)

    def current(self) -> Stream:
        return self._engine

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.said.append(f"on {stream.name}")
        yield

    @property
    def ends(self) -> list[Event]:
        """Those behind the copies of a batch; each has one before them, too."""
        return self.events[1::2]

    def event(self) -> Event:
        self.events.append(Event(len(self.events)))
        return self.events[-1]

    def indices(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers)

    def pin(self, memory: torch.Tensor) -> bool:
        if self.pins:
            self.pinned.append(memory.data_ptr())
        return self.pins

    def unpin(self, memory: torch.Tensor) -> None:
        self.pinned.remove(memory.data_ptr())
