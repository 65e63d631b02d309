"""Pages: whatever the engine's memory layout, a slot holds what `register` promises, and a load puts it back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import Batch, CpuCopier
from tierkv.connectors.vllm.pages.pages import AttentionPages, make_pages
from tierkv.connectors.vllm.pages.specs import Group

from .support.engine import make_group
from .support.sidecar import FakeArena

BLOCKS = 5
Tensors = dict[str, torch.Tensor]


def numbered(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Every element differs from every other (in bf16 too: the bits are counted up)."""
    count = int(torch.tensor(shape).prod())
    bits = torch.int32 if dtype.itemsize == 4 else torch.int16
    return torch.arange(1, count + 1, dtype=bits).view(dtype).reshape(shape)


def separate(group: Group, kernel_blocks: int) -> Tensors:
    """One allocation per layer, heads before tokens (vLLM 0.28)."""
    shape = (BLOCKS * kernel_blocks, group.heads, group.block_tokens // kernel_blocks, -1)
    width = group.dim_k + group.dim_v
    size = BLOCKS * group.heads * group.block_tokens * width
    whole = numbered(len(group.layer_names), size, dtype=group.dtype)
    return {
        name: whole[index].clone().reshape(shape) for index, name in enumerate(group.layer_names)
    }


def one_allocation(group: Group, kernel_blocks: int) -> Tensors:
    """All layers evenly in one allocation (vLLM 0.29 and later)."""
    width = group.dim_k + group.dim_v
    tokens = group.block_tokens // kernel_blocks
    shape = (len(group.layer_names), BLOCKS * kernel_blocks, group.heads, tokens, width)
    whole = numbered(*shape, dtype=group.dtype)
    return {name: whole[index] for index, name in enumerate(group.layer_names)}


def tokens_first(group: Group, kernel_blocks: int) -> Tensors:
    """Tokens before heads in memory (NHD), shown as heads before tokens."""
    width = group.dim_k + group.dim_v
    tokens = group.block_tokens // kernel_blocks
    shape = (len(group.layer_names), BLOCKS * kernel_blocks, tokens, group.heads, width)
    whole = numbered(*shape, dtype=group.dtype)
    return {name: whole[index].transpose(1, 2) for index, name in enumerate(group.layer_names)}


def blocks_outside(group: Group, kernel_blocks: int) -> Tensors:
    """All layers of a block side by side: the layer is an inner dimension."""
    width = group.dim_k + group.dim_v
    tokens = group.block_tokens // kernel_blocks
    shape = (BLOCKS * kernel_blocks, len(group.layer_names), group.heads, tokens, width)
    whole = numbered(*shape, dtype=group.dtype)
    return {name: whole[:, index] for index, name in enumerate(group.layer_names)}


def padded(group: Group, kernel_blocks: int) -> Tensors:
    """Pages padded at their end, layers in falling order of address."""
    width = group.dim_k + group.dim_v
    tokens = group.block_tokens // kernel_blocks
    page = group.heads * tokens * width
    rows = (len(group.layer_names), BLOCKS * kernel_blocks, page + 24)
    whole = numbered(*rows, dtype=group.dtype)
    shape = (BLOCKS * kernel_blocks, group.heads, tokens, width)
    return {
        name: whole[-1 - index].as_strided(
            shape,
            (page + 24, tokens * width, width, 1),
            whole[-1 - index].storage_offset(),
        )
        for index, name in enumerate(group.layer_names)
    }


LAYOUTS = [separate, one_allocation, tokens_first, blocks_outside, padded]
GROUPS = {
    "gqa-f32": make_group(layers=3, tokens=8, heads=2, dims=(4, 4)),
    "one-head-bf16": make_group(layers=2, tokens=8, heads=1, dims=(6, 6), dtype=torch.bfloat16),
    "k-wider-than-v-f16": make_group(layers=2, tokens=8, heads=3, dims=(4, 2), dtype=torch.float16),
    "one-layer": make_group(layers=1, tokens=8, heads=2, dims=(4, 4)),
}


@contextmanager
def mapped(slot_bytes: int) -> Iterator[tuple[FakeArena, Arena]]:
    fake = FakeArena(slot_bytes, 3)
    try:
        yield fake, Arena(1, fake.fd, slot_bytes * 3, slot_bytes, 3)
    finally:
        fake.close()


def vector(
    tensor: torch.Tensor, group: Group, kernel_blocks: int, at: tuple[int, int, int]
) -> bytes:
    """K and V of one (block, head, token), read by plain indexing."""
    block, head, token = at
    per_kernel = group.block_tokens // kernel_blocks
    found = tensor[block * kernel_blocks + token // per_kernel, head, token % per_kernel]
    return found.contiguous().view(torch.uint8).numpy().tobytes()


def expected_slot(tensors: Tensors, group: Group, kernel_blocks: int, block: int) -> bytes:
    """What `register` says a slot looks like, put together vector by vector."""
    frame = {key: int(value) for key, value in group.registration().items() if key not in _TEXT}
    slot = bytearray(group.block_bytes)
    key_bytes = group.dim_k * group.dtype.itemsize
    for layer, name in enumerate(group.layer_names):
        for head in range(group.heads):
            for token in range(group.block_tokens):
                both = vector(tensors[name], group, kernel_blocks, (block, head, token))
                base = layer * frame["layer_bytes"]
                base += head * frame["head_stride"] + token * frame["token_stride"]
                key, value = base + frame["key_offset"], base + frame["value_offset"]
                slot[key : key + key_bytes] = both[:key_bytes]
                slot[value : value + len(both) - key_bytes] = both[key_bytes:]
    return bytes(slot)


_TEXT = ("class", "layout", "dtype")


@pytest.mark.parametrize("kernel_blocks", [1, 2, 4])
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_saved_slot_is_what_register_says_and_loads_back(
    layout: object, name: str, kernel_blocks: int
) -> None:
    assert callable(layout)
    group = GROUPS[name]
    tensors: Tensors = layout(group, kernel_blocks)
    pages = AttentionPages(group, tensors, BLOCKS)
    copier = CpuCopier()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with mapped(group.block_bytes + 64) as (fake, arena):
        copier.save(Batch(pages, arena, [(3, 0), (1, 2)]))
        assert fake.slot(0)[: group.block_bytes] == expected_slot(tensors, group, kernel_blocks, 3)
        assert fake.slot(2)[: group.block_bytes] == expected_slot(tensors, group, kernel_blocks, 1)
        assert fake.slot(1) == bytes(fake.slot_bytes)
        assert fake.slot(0)[group.block_bytes :] == bytes(64)

        for tensor in tensors.values():
            tensor[3 * kernel_blocks : 4 * kernel_blocks] = 0
        copier.load(Batch(pages, arena, [(3, 0)]))
        assert all(torch.equal(tensors[name], before[name]) for name in tensors)

        copier.load(Batch(pages, arena, [(2, 2)]))  # block 1's bytes into block 2, nothing else
        for name, tensor in tensors.items():
            rows = tensor.unflatten(0, (BLOCKS, kernel_blocks))
            old = before[name].unflatten(0, (BLOCKS, kernel_blocks))
            assert torch.equal(rows[2], old[1])
            assert all(torch.equal(rows[block], old[block]) for block in (0, 1, 3, 4))


def test_layers_in_one_allocation_are_one_view() -> None:
    group = GROUPS["gqa-f32"]
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    assert len(AttentionPages(group, one_allocation(group, 1), BLOCKS).pairs(1, slot)) == 1
    assert len(AttentionPages(group, separate(group, 1), BLOCKS).pairs(1, slot)) == 3


@pytest.mark.parametrize("block", [0, -1, BLOCKS])
def test_the_null_block_and_foreign_blocks_are_refused(block: int) -> None:
    group = GROUPS["gqa-f32"]
    pages = AttentionPages(group, separate(group, 1), BLOCKS)
    slots = torch.zeros((2, group.block_bytes), dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"block {block} is not one of the engine's {BLOCKS}"):
        pages.pairs(block, slots[1])
    with pytest.raises(ValueError, match=f"block {block} is not one of the engine's {BLOCKS}"):
        pages.copy_all([(block, 1)], slots, to_slot=True)


@pytest.mark.parametrize("slot", [-1, 2])
@pytest.mark.parametrize("to_slot", [True, False])
def test_slots_that_are_none_are_refused(slot: int, *, to_slot: bool) -> None:
    group = GROUPS["gqa-f32"]
    engine, slots = separate(group, 1), torch.ones((2, group.block_bytes), dtype=torch.uint8)
    before = {name: layer.clone() for name, layer in engine.items()}
    plain = {"layer.0": torch.zeros(BLOCKS, group.block_bytes, dtype=torch.int8)}
    for pages in (
        AttentionPages(group, engine, BLOCKS),
        make_pages(opaque(group.block_bytes), plain, BLOCKS),
    ):
        with pytest.raises(ValueError, match=f"slot {slot} is not one of the arena's 2"):
            pages.copy_all([(1, slot)], slots, to_slot=to_slot)
    assert all(torch.equal(layer, before[name]) for name, layer in engine.items())
    assert bool((slots == 1).all())


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((BLOCKS, 2, 8, 9), torch.float32),  # other dims
        ((BLOCKS, 3, 8, 8), torch.float32),  # other heads
        ((BLOCKS, 2, 4, 8), torch.float32),  # too few tokens
        ((BLOCKS, 2, 8, 8), torch.uint8),  # quantized
        ((BLOCKS + 1, 2, 8, 8), torch.float32),  # not the engine's blocks
        ((2, BLOCKS, 8, 2, 8), torch.float32),  # K and V apart
    ],
)
def test_a_tensor_that_is_not_what_the_spec_says_is_refused_by_name(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    group = GROUPS["gqa-f32"]
    tensors = {name: torch.zeros(shape, dtype=dtype) for name in group.layer_names}
    with pytest.raises(ValueError, match=r"layer layer\.0: expected .*2 heads"):
        AttentionPages(group, tensors, BLOCKS)


def test_head_vectors_in_pieces_are_refused() -> None:
    group = GROUPS["gqa-f32"]
    apart = torch.zeros((BLOCKS, 2, 8, 16))[..., ::2]
    with pytest.raises(ValueError, match=r"layer\.0: head vectors are not contiguous"):
        AttentionPages(group, dict.fromkeys(group.layer_names, apart), BLOCKS)


def opaque(*sizes: int) -> Group:
    """A group of opaque pages, one layer for each size."""
    names = tuple(f"layer.{number}" for number in range(len(sizes)))
    return Group(0, names, 4, page_bytes=sizes, page_format="test")


def test_opaque_pages_lie_layer_after_layer_without_padding_and_come_back() -> None:
    """A state padded to 128 bytes, int8 rows in one allocation with others; and codes of another layer, dense."""
    memory = torch.arange(BLOCKS * 128, dtype=torch.int32).to(torch.int8).view(BLOCKS, 128)
    padded = memory[:, :96].view(BLOCKS, 1, 1, 96)
    codes = torch.arange(BLOCKS * 2 * 3 * 8).to(torch.uint8).view(BLOCKS * 2, 3, 8)
    group = opaque(96, 48)
    pages = make_pages(group, {"layer.0": padded, "layer.1": codes}, BLOCKS)
    slot = torch.zeros(group.block_bytes + 8, dtype=torch.uint8)
    pages.copy(3, slot, to_slot=True)
    wanted = memory[3, :96].view(torch.uint8).tolist() + codes[6:8].flatten().tolist()
    assert slot.tolist() == [*wanted, *[0] * 8]
    before = memory.clone()
    padded[3] = 0
    codes[6:8] = 0
    pages.copy(3, slot, to_slot=False)
    assert torch.equal(memory, before)
    assert codes[6:8].flatten().tolist() == wanted[96:]


@pytest.mark.parametrize("block", [0, -1, BLOCKS])
def test_only_the_engines_blocks_are_opaque_pages(block: int) -> None:
    pages = make_pages(opaque(8), {"layer.0": torch.zeros(BLOCKS, 8, dtype=torch.int8)}, BLOCKS)
    with pytest.raises(ValueError, match=f"block {block} is not one"):
        pages.copy(block, torch.zeros(8, dtype=torch.uint8), to_slot=True)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(BLOCKS, 9, dtype=torch.int8), "expected 8 bytes a block, got 9"),
        (torch.zeros(BLOCKS + 1, 8, dtype=torch.int8), "expected .blocks, ..."),
        (torch.zeros(8, BLOCKS, dtype=torch.int8).T, "whole rows"),
        ([torch.zeros(BLOCKS, 8)], "expected one KV tensor, got list"),
    ],
    ids=["size", "blocks", "strides", "list"],
)
def test_tensors_that_are_no_opaque_pages_are_refused_by_layer(tensor: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"layer.0: .*{words}"):
        make_pages(opaque(8), {"layer.0": tensor}, BLOCKS)
