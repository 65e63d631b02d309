"""Owns pages of two layers where vLLM's own code puts them, and the look at them when they come back."""

from typing import Any

import torch
from tierkv.connectors.vllm.pages.pages import make_pages
from tierkv.connectors.vllm.pages.specs import Group
from vllm.v1 import kv_cache_interface as vllm_specs
from vllm.v1.kv_cache_interface import KVCacheTensor
from vllm.v1.kv_cache_layout import KVCacheLayout

BLOCKS = 4
NAMES = ["model.layers.0.attn", "model.layers.1.attn"]


def lay_out(spec: Any, layout: KVCacheLayout) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Random pages of two layers in one allocation."""
    strides = vllm_specs.compute_layout_strides(spec, BLOCKS, len(NAMES), layout)
    size = len(NAMES) * BLOCKS * max(spec.page_size_bytes, strides[1])
    raw = torch.randint(-128, 128, (size,), dtype=torch.int8)
    place = KVCacheTensor(
        size=size, layers=NAMES, layer_stride=strides[0], block_stride=strides[1], offset=0
    )
    views = vllm_specs.create_kv_cache_views(raw, spec, BLOCKS, layout, place)
    return raw, dict(zip(NAMES, views, strict=True))


def check_round_trip(group: Group, raw: torch.Tensor, tensors: dict[str, torch.Tensor]) -> None:
    """Save a block, write over it, restore it: all memory is as it was."""
    pages = make_pages(group, tensors, BLOCKS)
    saved = torch.zeros(group.block_bytes, dtype=torch.uint8)
    pages.copy(2, saved, to_slot=True)
    before = raw.clone()
    for page in tensors.values():
        page[2].fill_(7)
    assert not torch.equal(raw, before)
    pages.copy(2, saved, to_slot=False)
    assert torch.equal(raw, before)
