"""An engine that sleeps (vLLM 0.33): no page is touched while the memory behind it is gone, and all works after it."""

import ctypes
import mmap
from collections.abc import Iterator

import pytest
import torch
from tierkv.connectors.vllm.connector import TierKVConnector

from .support.sidecar import FakeSidecar
from .support.worker import BLOCKS, GROUP, Rank

NONE, READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE


class Device:
    """Memory that can be taken away behind its addresses, as vLLM's allocator does: touching it then is a SIGSEGV."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def _protect(self, protection: int) -> None:
        length = ctypes.c_size_t(len(self._map))
        assert self._libc.mprotect(ctypes.c_void_p(self._at), length, protection) == 0

    def take_away(self) -> None:
        self._map.madvise(mmap.MADV_DONTNEED)
        self._protect(NONE)

    def bring_back(self) -> None:
        self._protect(READ_WRITE)


class Engine(Rank):
    """A worker side over such memory, with an arena of six slots."""

    def __init__(self, path: str, sidecar: FakeSidecar) -> None:
        self.device = Device(GROUP.block_bytes * BLOCKS)
        super().__init__(path, sidecar, memory=self.device.tensor.view(torch.float32))
        self.give_arena()
        self.give_credits(*((slot, 1) for slot in range(4)))

    def load_one(self, block: int, slot: int) -> tuple[set[str], set[str]]:
        self.load([block], [slot])
        return self.shim.take_finished()


@pytest.fixture
def engine(socket_path: str) -> Iterator[Engine]:
    with FakeSidecar(socket_path) as sidecar, Engine(socket_path, sidecar) as made:
        yield made
        made.device.bring_back()


def test_no_page_is_touched_between_unregister_and_restore(engine: Engine) -> None:
    assert TierKVConnector.supports_sleep_mode(None)
    engine.connector.unregister_kv_caches()
    engine.connector.unregister_kv_caches()  # vLLM calls it again for `discard`
    engine.device.take_away()
    assert engine.save(2, ticket=5, has_forward=False) == {5: 1}  # its blocks are vLLM's again
    assert engine.load_one(3, slot=5) == (set(), {"r"})  # and are computed instead
    assert engine.shim.counters.get("dropped_save_asleep") == 1
    assert engine.shim.counters.get("load_asleep") == 1
    assert engine.shim.status()["credits"] == 4


def test_after_waking_pages_are_saved_and_restored_through_the_same_views(engine: Engine) -> None:
    engine.memory[:, 2] = 7.0
    before = engine.page(2)
    engine.save(2, ticket=1, has_forward=False)
    engine.connector.unregister_kv_caches()
    engine.device.take_away()
    engine.device.bring_back()
    engine.connector.restore_kv_caches()
    assert engine.page(2) == bytes(len(before))  # what slept at level 1 comes back empty
    saved = next(slot for slot in range(4) if engine.arenas[0].slot(slot) == before)
    assert engine.load_one(6, slot=saved) == ({"r"}, set())
    assert engine.page(6) == before
    engine.memory[:, 4] = 9.0
    engine.save(4, ticket=2, has_forward=False)
    assert engine.page(4) in [engine.arenas[0].slot(slot) for slot in range(4)]
