"""Copies on side streams, their logic on a CPU: who waits for whom, when a copy counts as done, what stays pinned."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.arena import Arena
from tierkv.connectors.vllm.copies import Batch, CudaCopier
from tierkv.connectors.vllm.pages import make_pages

from .support.engine import make_group
from .support.sidecar import FakeArena

BLOCKS = 4
GROUP = make_group()


class Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name = name
        self._said = said

    def wait_stream(self, other: "Stream") -> None:
        self._said.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self._said.append(f"{self.name} ends")


class Event:
    def __init__(self) -> None:
        self.stream: Any = None
        self.has_passed = False

    def record(self, stream: Any) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.has_passed

    def elapsed_time(self, end: "Event") -> float:
        assert end.has_passed
        return 2.5


class Device:
    """Calls of CUDA that say what was asked, and whose events pass when the test says so."""

    def __init__(self, *, pins: bool = True) -> None:
        self.said: list[str] = []
        self.events: list[Event] = []
        self.pinned: list[int] = []
        self._pins = pins
        self._engine = Stream("engine", self.said)
        self._names = iter(("saves", "loads"))

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
        self.events.append(Event())
        return self.events[-1]

    def indices(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers)

    def pin(self, memory: torch.Tensor) -> bool:
        if self._pins:
            self.pinned.append(memory.data_ptr())
        return self._pins

    def unpin(self, memory: torch.Tensor) -> None:
        self.pinned.remove(memory.data_ptr())


class Bench:
    """A copier over such a device, and pages to copy."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.copier = CudaCopier(torch.device("cpu"), device)
        shape = (BLOCKS, GROUP.heads, GROUP.block_tokens, GROUP.dim_k + GROUP.dim_v)
        self.layers = {name: torch.rand(shape) for name in GROUP.layer_names}
        self.pages = make_pages(GROUP, self.layers, BLOCKS)
        self.shared: list[FakeArena] = []
        self.done: list[str] = []

    def arena(self, arena_id: int) -> Arena:
        fake = FakeArena(GROUP.block_bytes, BLOCKS)
        self.shared.append(fake)
        size = GROUP.block_bytes * BLOCKS
        return Arena(arena_id, fake.fd, size, GROUP.block_bytes, BLOCKS)

    def prepare(self, arena: Arena) -> Arena:
        """Wait until it is ready."""
        is_ready = threading.Event()
        self.copier.prepare(arena, is_ready.set)
        assert is_ready.wait(5)
        return arena

    def batch(self, arena: Arena, name: str, block: int = 1) -> Batch:
        return Batch(self.pages, arena, [(block, 0)], [lambda: self.done.append(name)])

    def passes(self, number: int) -> None:
        self.device.ends[number].has_passed = True
        self.copier.poll()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(Device())
    yield made
    for fake in made.shared:
        fake.close()


def test_a_save_runs_behind_the_forward_and_its_blocks_are_kept_from_the_next(bench: Bench) -> None:
    bench.copier.save(bench.batch(bench.arena(1), "save"))
    bench.copier.fence()
    assert bench.device.said == ["saves waits for engine", "on saves", "engine waits for saves"]
    assert bench.device.ends[0].stream.name == "saves"


def test_a_copy_is_done_when_its_event_has_passed_in_any_order(bench: Bench) -> None:
    arena = bench.arena(1)
    bench.copier.save(bench.batch(arena, "save"))
    bench.copier.load(bench.batch(arena, "load", block=2))
    assert [event.stream.name for event in bench.device.ends] == ["saves", "loads"]
    bench.copier.poll()
    assert (bench.done, bench.copier.is_running) == ([], True)
    bench.passes(1)
    assert (bench.done, bench.copier.is_running) == (["load"], True)
    bench.passes(0)
    assert (bench.done, bench.copier.is_running) == (["load", "save"], False)
    assert all(torch.equal(layer[1], layer[2]) for layer in bench.layers.values())


def test_settling_waits_for_both_streams_and_reports(bench: Bench) -> None:
    bench.copier.save(bench.batch(bench.arena(1), "save"))
    bench.device.ends[0].has_passed = True
    bench.copier.settle()
    assert bench.device.said[-2:] == ["saves ends", "loads ends"]
    assert bench.done == ["save"]


def test_an_arena_is_pinned_once_and_let_go_of_when_it_is_old_and_unused(bench: Bench) -> None:
    arenas = [bench.arena(number) for number in range(limits.ARENAS_MAX + 2)]
    bench.copier.save(bench.batch(bench.prepare(arenas[0]), "runs on"))
    for arena in arenas[1:]:
        bench.prepare(arena)
        for _ in range(2):
            bench.copier.save(bench.batch(arena, "save"))
            bench.passes(-1)
    places = [arena.bytes.data_ptr() for arena in arenas]
    assert bench.device.pinned == [places[0], *places[3:]]  # the first is still in use
    bench.passes(0)
    assert bench.done.count("runs on") == 1


def test_memory_that_is_refused_is_copied_all_the_same_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(Device(pins=False))
    arena = bench.prepare(bench.arena(1))
    for _ in range(2):
        bench.copier.save(bench.batch(arena, "save"))
    kept = bench.shared[0].slot(0)
    assert kept != bytes(len(kept))
    assert caplog.text.count("does not pin arena 1") == 1


def test_an_arena_is_pinned_in_pieces_of_whole_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Device())
    monkeypatch.setattr(limits, "PIN_BYTES", GROUP.block_bytes * 3 - 1)
    arena = bench.prepare(bench.arena(1))
    start = arena.bytes.data_ptr()
    assert bench.device.pinned == [start, start + 2 * GROUP.block_bytes]


def test_at_the_end_nothing_stays_pinned(bench: Bench) -> None:
    bench.prepare(bench.arena(1))
    bench.prepare(bench.arena(2))
    bench.copier.close()
    assert bench.device.said[-2:] == ["saves ends", "loads ends"]
    assert bench.device.pinned == []
    late = threading.Event()
    bench.copier.prepare(bench.arena(3), late.set)
    assert not late.wait(0.5)
    assert bench.device.pinned == []


def test_a_device_that_fails_keeps_no_arena_from_being_used(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(memory: torch.Tensor) -> bool:
        del memory
        raise RuntimeError("CUDA error: initialization error")

    bench.device.pin = fail  # type: ignore[method-assign]
    bench.prepare(bench.arena(1))
    assert "arena 1 is not pinned" in caplog.text
