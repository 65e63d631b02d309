"""Many blocks at once give the bytes that one by one gives, whatever lies where."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import Batch, CpuCopier, CudaCopier
from tierkv.connectors.vllm.pages.pages import Pages, make_pages
from tierkv.connectors.vllm.pages.rows import Rows

from .support.device import Device
from .support.engine import make_group
from .support.sidecar import FakeArena

BLOCKS = 12
GROUP = make_group()
#: (block, slot): out of order, with neighbours, and with holes between slots.
PAIRS = [(7, 3), (2, 2), (11, 0), (4, 9), (1, 8), (9, 5), (3, 4)]


def separate() -> dict[str, torch.Tensor]:
    shape = (BLOCKS, GROUP.heads, GROUP.block_tokens, GROUP.dim_k + GROUP.dim_v)
    return {name: torch.rand(shape) for name in GROUP.layer_names}


def together(*, kernel_blocks: int = 1) -> dict[str, torch.Tensor]:
    """All layers in one allocation, tokens before heads, a block of several kernel blocks."""
    tokens = GROUP.block_tokens // kernel_blocks
    shape = (
        len(GROUP.layer_names),
        BLOCKS * kernel_blocks,
        tokens,
        GROUP.heads,
        GROUP.dim_k + GROUP.dim_v,
    )
    whole = torch.rand(shape).transpose(2, 3)
    return dict(zip(GROUP.layer_names, whole, strict=True))


@contextmanager
def arena_of(slot_bytes: int) -> Iterator[Arena]:
    fake = FakeArena(slot_bytes, BLOCKS)
    yield Arena(1, fake.fd, slot_bytes * BLOCKS, slot_bytes, BLOCKS)
    fake.close()


def pages_of(tensors: dict[str, torch.Tensor]) -> Pages:
    return make_pages(GROUP, tensors, BLOCKS)


LAYOUTS: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    "layers apart": separate,
    "layers together": together,
    "kernel blocks": lambda: together(kernel_blocks=2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", [0, 64])
@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("piece", [2, 100])
def test_rows_are_what_one_by_one_gives(
    monkeypatch: pytest.MonkeyPatch, layout: str, padding: int, at_once: int, piece: int
) -> None:
    slot_bytes = GROUP.block_bytes + padding
    monkeypatch.setattr(limits, "ROWS_BYTES_MAX", GROUP.block_bytes * at_once)
    monkeypatch.setattr(limits, "PIN_BYTES", slot_bytes * piece)
    tensors = LAYOUTS[layout]()
    pages = pages_of(tensors)
    before = {name: layer.clone() for name, layer in tensors.items()}
    used = [slot for _, slot in PAIRS]
    with arena_of(slot_bytes) as ours, arena_of(slot_bytes) as plain:
        CudaCopier(torch.device("cpu"), Device()).save(Batch(pages, ours, PAIRS))
        CpuCopier().save(Batch(pages, plain, PAIRS))
        for slot in range(BLOCKS):
            held = ours.slot(slot)[: GROUP.block_bytes]
            assert torch.equal(held, plain.slot(slot)[: GROUP.block_bytes])
            assert bool(held.any()) == (slot in used)
        for layer in tensors.values():
            layer.zero_()
        CudaCopier(torch.device("cpu"), Device()).load(Batch(pages, ours, PAIRS))
        for name, layer in tensors.items():
            for block in range(BLOCKS):
                kernel = layer.shape[0] // BLOCKS
                found = layer[block * kernel : (block + 1) * kernel]
                was = before[name][block * kernel : (block + 1) * kernel]
                is_ours = block in dict(PAIRS)
                assert torch.equal(found, was if is_ours else torch.zeros_like(was))


def test_slots_side_by_side_are_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    run = Arena.run

    def counted(self: Arena, first: int, count: int) -> torch.Tensor:
        asked.append((first, count))
        return run(self, first, count)

    monkeypatch.setattr(Arena, "run", counted)
    with arena_of(GROUP.block_bytes) as arena:
        CudaCopier(torch.device("cpu"), Device()).save(Batch(pages_of(separate()), arena, PAIRS))
    assert asked == [(0, 1), (2, 4), (8, 2)]


def test_without_memory_for_the_buffer_blocks_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    tensors = separate()
    monkeypatch.setattr(Rows, "gather", refuse)
    with arena_of(GROUP.block_bytes) as arena:
        CudaCopier(torch.device("cpu"), Device()).save(Batch(pages_of(tensors), arena, PAIRS))
        assert all(bool(arena.slot(slot).any()) for _, slot in PAIRS)


def test_a_block_that_is_none_is_refused_before_anything_is_copied() -> None:
    with arena_of(GROUP.block_bytes) as arena:
        copier = CudaCopier(torch.device("cpu"), Device())
        with pytest.raises(ValueError, match="block 12 is not one of the engine's 12"):
            copier.save(Batch(pages_of(separate()), arena, [(3, 0), (12, 1)]))
        assert not arena.bytes.any()
