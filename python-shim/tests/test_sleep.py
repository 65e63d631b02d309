"""An engine that sleeps (vLLM 0.33): no page is touched while the memory behind it is gone, and all works after it."""

import ctypes
import mmap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.connector import TierKVConnector
from tierkv.connectors.vllm.metadata import LoadPart, SaveItem, StepMetadata
from tierkv.connectors.vllm.settings import Settings
from tierkv.connectors.vllm.worker import WorkerShim

from .support.engine import chain, make_group, vllm_config
from .support.sidecar import FakeArena, FakeSidecar, pairs, wait_until

BLOCKS = 8
GROUP = make_group()
HASHES = chain("sleep", BLOCKS)
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


class Engine:
    """A worker side over such memory, with an arena of six slots."""

    def __init__(self, path: str, sidecar: FakeSidecar) -> None:
        self.device = Device(GROUP.block_bytes * BLOCKS)
        layers = self.device.tensor.view(torch.float32)
        shape = (len(GROUP.layer_names), BLOCKS, GROUP.heads, GROUP.block_tokens, -1)
        self.memory = layers.reshape(shape)
        self.shim = WorkerShim(
            vllm_config(), Settings(path, "test", autostart=False), [GROUP], BLOCKS
        )
        self.shim.register_kv_caches(dict(zip(GROUP.layer_names, self.memory, strict=True)))
        self.shim.introduce()
        self.connector = TierKVConnector.__new__(TierKVConnector)
        self.connector.take(self.shim)
        sidecar.expect("register")
        self.arena = FakeArena(GROUP.block_bytes, 6)
        sidecar.send(self.arena.frame(1))
        sidecar.expect("mapped")
        sidecar.send(
            {"t": "credits", "arena": 1, "slots": pairs(*((slot, 1) for slot in range(4)))}
        )
        wait_until(lambda: self.shim.status()["credits"] == 4, "the credits")

    def save(self, block: int, ticket: int) -> Any:
        item = SaveItem(0, block, HASHES[block], HASHES[block - 1], 4 * block)
        step = StepMetadata(has_forward=False, namespace=bytes(32), ticket=ticket, saves=[item])
        self.shim.start_load_kv(step)
        return self.shim.take_receipts()

    def load(self, block: int, slot: int) -> tuple[set[str], set[str]]:
        part = LoadPart(
            req_id=f"r{block}", block_ids=[block], slots=[slot], arena=1, group=0, last=True
        )
        self.shim.start_load_kv(StepMetadata(loads=[part]))
        return self.shim.take_finished()

    def page(self, block: int) -> bytes:
        return bytes(self.memory[:, block].contiguous().numpy().data)


@pytest.fixture
def engine(socket_path: str) -> Iterator[Engine]:
    with FakeSidecar(socket_path) as sidecar:
        made = Engine(socket_path, sidecar)
        yield made
        made.device.bring_back()
        made.shim.shutdown()
        made.arena.close()


def test_no_page_is_touched_between_unregister_and_restore(engine: Engine) -> None:
    assert TierKVConnector.supports_sleep_mode(None)
    engine.connector.unregister_kv_caches()
    engine.connector.unregister_kv_caches()  # vLLM calls it again for `discard`
    engine.device.take_away()
    assert engine.save(2, ticket=5).tickets == {5: 1}  # its blocks are vLLM's again
    assert engine.load(3, slot=5) == (set(), {"r3"})  # and are computed instead
    assert engine.shim.counters.get("dropped_save_asleep") == 1
    assert engine.shim.counters.get("load_asleep") == 1
    assert engine.shim.status()["credits"] == 4


def test_after_waking_pages_are_saved_and_restored_through_the_same_views(engine: Engine) -> None:
    engine.memory[:, 2] = 7.0
    before = engine.page(2)
    engine.save(2, ticket=1)
    engine.connector.unregister_kv_caches()
    engine.device.take_away()
    engine.device.bring_back()
    engine.connector.restore_kv_caches()
    assert engine.page(2) == bytes(len(before))  # what slept at level 1 comes back empty
    saved = next(slot for slot in range(4) if engine.arena.slot(slot) == before)
    assert engine.load(6, slot=saved) == ({"r6"}, set())
    assert engine.page(6) == before
    engine.memory[:, 4] = 9.0
    engine.save(4, ticket=2)
    assert engine.page(4) in [engine.arena.slot(slot) for slot in range(4)]
