"""Copies on side streams, their logic on a CPU: who waits for whom, when a copy counts as done, what stays pinned."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import Batch, CudaCopier
from tierkv.connectors.vllm.pages.cuda import Cuda
from tierkv.connectors.vllm.pages.pages import make_pages

from .support.device import Device
from .support.engine import make_group
from .support.sidecar import FakeArena, wait_until

BLOCKS = 4
GROUP = make_group()


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
        self.copier.may_pin()
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


def replace_group(pages: Any, **changes: Any) -> Any:
    """The same pages as another group's."""
    other = copy(pages)
    other.group = replace(pages.group, **changes)
    return other


def test_a_save_runs_behind_the_forward_and_the_next_one_does_not_wait_for_it(bench: Bench) -> None:
    bench.copier.save(bench.batch(bench.arena(1), "save"))
    bench.copier.fence()
    assert bench.device.said == ["saves waits for engine", "on saves", "on saves"]
    assert bench.device.ends[0].stream.name == "saves"


def test_a_state_that_is_copied_is_kept_from_the_next_forward(bench: Bench) -> None:
    bench.pages.group = replace(GROUP, record_class="ssm")
    bench.copier.save(bench.batch(bench.arena(1), "save"))
    bench.copier.fence()
    assert bench.device.said[-1] == "engine waits for event 1"
    bench.passes(0)
    bench.copier.fence()
    assert bench.device.said.count("engine waits for event 1") == 1


def test_a_state_is_waited_for_and_not_the_blocks_saved_behind_it(bench: Bench) -> None:
    arena = bench.arena(1)
    state = bench.batch(arena, "state")
    state.pages = replace_group(bench.pages, record_class="ssm")
    bench.copier.save(state)
    bench.copier.save(bench.batch(arena, "blocks", block=2))
    said = len(bench.device.said)
    bench.copier.fence()
    assert bench.device.said[said:] == ["engine waits for event 1"]


@pytest.mark.parametrize("way", ["saves", "loads"])
def test_buffers_take_turns_on_two_streams_and_the_first_ends_last(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(limits, "ROWS_BYTES_MAX", 1)
    arena = bench.arena(1)
    batch = Batch(bench.pages, arena, [(1, 0), (2, 1), (3, 2)])
    (bench.copier.save if way == "saves" else bench.copier.load)(batch)
    assert bench.device.said == [
        *(f"{way} waits for engine", f"on {way}", f"{way} 2 waits for {way}"),
        *(f"on {way}", f"on {way} 2", f"on {way}", f"{way} waits for {way} 2"),
    ]
    assert bench.device.ends[0].stream.name == way


def test_blocks_of_many_buffers_come_to_their_own_slots_and_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ROWS_BYTES_MAX", 1)
    arena = bench.arena(1)
    pairs = [(1, 2), (2, 0), (3, 1)]
    bench.copier.save(Batch(bench.pages, arena, pairs))
    one = torch.empty(GROUP.block_bytes, dtype=torch.uint8)
    for block, slot in pairs:
        bench.pages.copy(block, one, to_slot=True)
        assert bench.shared[0].slot(slot) == one.numpy().tobytes()
    before = [layer.clone() for layer in bench.layers.values()]
    for layer in bench.layers.values():
        layer[1:].zero_()
    bench.copier.load(Batch(bench.pages, arena, pairs))
    assert all(torch.equal(*both) for both in zip(bench.layers.values(), before, strict=True))


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


def test_a_retired_arena_is_unpinned_once_its_copies_have_ended(bench: Bench) -> None:
    used, unused, present = arenas = [bench.arena(number) for number in range(3)]
    for arena in arenas:
        bench.prepare(arena)
    place = {arena.arena_id: arena.bytes.data_ptr() for arena in arenas}
    bench.copier.save(bench.batch(used, "runs on"))
    bench.copier.retire(used)
    bench.copier.retire(unused)
    left = [place[used.arena_id], place[present.arena_id]]
    wait_until(lambda: bench.device.pinned == left, "the unused one is unpinned")
    bench.copier.poll()
    assert bench.device.pinned == left
    bench.passes(0)
    wait_until(lambda: bench.device.pinned == left[1:], "the used one is unpinned")
    assert bench.done == ["runs on"]


def test_no_copy_waits_for_an_arena_that_is_unpinned(bench: Bench) -> None:
    old, present = bench.prepare(bench.arena(1)), bench.prepare(bench.arena(2))
    unpins, goes_on = threading.Event(), threading.Event()
    unpin = bench.device.unpin

    def slow(memory: torch.Tensor) -> None:
        unpins.set()
        assert goes_on.wait(10)
        unpin(memory)

    bench.device.unpin = slow  # type: ignore[method-assign]
    bench.copier.retire(old)
    assert unpins.wait(10)
    bench.copier.save(bench.batch(present, "save"))
    bench.passes(0)
    assert bench.done == ["save"]
    goes_on.set()


def test_an_arena_that_is_retired_before_it_is_pinned_does_not_stay_so(bench: Bench) -> None:
    arena = bench.arena(1)
    bench.copier.retire(arena)
    bench.prepare(arena)
    wait_until(lambda: not bench.device.pinned, "it is unpinned")


def test_memory_that_is_refused_is_copied_all_the_same_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(Device(pins=False))
    arena = bench.prepare(bench.arena(1))
    wait_until(lambda: "does not pin" in caplog.text, "the warning")
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


class Capture(Device):
    """A device that captures a graph in global mode: a call of any thread that registers memory breaks the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.is_capturing, self.is_broken = True, False

    def pin(self, memory: torch.Tensor) -> bool:
        self.is_broken |= self.is_capturing
        return super().pin(memory)


def test_no_memory_is_pinned_while_graphs_are_captured() -> None:
    device = Capture()
    bench = Bench(device)
    is_ready = threading.Event()
    arena = bench.arena(1)
    bench.copier.prepare(arena, is_ready.set)
    assert not is_ready.wait(0.3)
    device.is_capturing = False
    bench.copier.may_pin()
    assert is_ready.wait(5)
    assert (device.is_broken, device.pinned) == (False, [arena.bytes.data_ptr()])


def test_a_refused_piece_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PIN_RETRY_S", 0.01)
    monkeypatch.setattr(limits, "PIN_BYTES", GROUP.block_bytes * 2)
    device = Device(pins=False)
    bench = Bench(device)
    arena = bench.prepare(bench.arena(1))
    assert device.pinned == []
    device.pins = True
    places = [arena.bytes.data_ptr(), arena.bytes.data_ptr() + 2 * GROUP.block_bytes]
    wait_until(lambda: device.pinned == places, "both pieces are pinned")
    bench.copier.close()
    assert device.pinned == []


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


def test_threads_that_pin_and_unpin_use_the_device_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = ["none"]
    said: list[str] = []

    @contextmanager
    def use(device: torch.device) -> Iterator[None]:
        present.append(str(device))
        yield
        present.pop()

    def call(*_: int) -> int:
        said.append(present[-1])
        return 0

    runtime = SimpleNamespace(cudaHostRegister=call, cudaHostUnregister=call)
    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    calls, memory = Cuda(torch.device("cuda:3")), torch.zeros(4)
    assert calls.pin(memory)
    calls.unpin(memory)
    assert said == ["cuda:3", "cuda:3"]


def test_a_device_that_fails_keeps_no_arena_from_being_used(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(memory: torch.Tensor) -> bool:
        del memory
        raise RuntimeError("CUDA error: initialization error")

    bench.device.pin = fail  # type: ignore[method-assign]
    bench.prepare(bench.arena(1))
    assert "arena 1 is not pinned" in caplog.text
