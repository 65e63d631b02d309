"""Owns the pages that the kit copies: tensors at vLLM's places from layouts.json, and an arena like a sidecar's."""

from __future__ import annotations

import fcntl
import os
from typing import Any

import torch
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import Batch
from tierkv.connectors.vllm.pages.pages import make_pages
from tierkv.connectors.vllm.pages.specs import Group

Json = dict[str, Any]
PAGE_BYTES = 4096


def group_of(entry: Json) -> Group:
    """Make the shim's group of an entry."""
    given = entry["group"]
    return Group(
        index=0,
        layer_names=tuple(f"layer.{index}" for index in range(len(entry["offsets"]))),
        block_tokens=given["tokens"],
        heads=given["heads"],
        dim_k=given["dims"][0],
        dim_v=given["dims"][1],
        dtype=getattr(torch, given["dtype"]),
        record_class=given["class"],
        tail=given["tail"],
        page_bytes=tuple(given["page_bytes"]),
    )


def make_arena(arena_id: int, slot_bytes: int, slots: int) -> Arena:
    """Make a sealed memfd, as the sidecar does."""
    slot_bytes = -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES
    fd = os.memfd_create("tierkv-kit", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, slot_bytes * slots)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return Arena(arena_id, fd, slot_bytes * slots, slot_bytes, slots)
    finally:
        os.close(fd)


class Cache:
    """An engine's KV memory in one layout, every byte drawn by a seed, and its arena."""

    def __init__(self, entry: Json, device: torch.device, arena_id: int, seed: int = 1) -> None:
        self.entry = entry
        self.group = group_of(entry)
        drawn = torch.Generator(device).manual_seed(seed)
        self.raw = torch.randint(
            -128, 128, (entry["bytes"],), dtype=torch.int8, generator=drawn, device=device
        )
        typed = self.raw.view(getattr(torch, entry["dtype"]))
        self.layers = {
            name: torch.as_strided(typed, entry["shape"], entry["strides"], offset)
            for name, offset in zip(self.group.layer_names, entry["offsets"], strict=True)
        }
        self.blocks = range(1, entry["blocks"])  # 0 is vLLM's null block
        self.pages = make_pages(self.group, self.layers, entry["blocks"])
        self.arena = make_arena(arena_id, self.group.block_bytes, len(self.blocks))

    def batch(self, blocks: range | None = None) -> Batch:
        """Return blocks with the slots that save them."""
        chosen = blocks if blocks is not None else self.blocks
        return Batch(self.pages, self.arena, [(block, block - 1) for block in chosen])

    def wipe(self) -> None:
        """Overwrite every page except the null block's; bytes between pages stay."""
        for layer in self.layers.values():
            per_block = layer.shape[0] // self.entry["blocks"]
            layer[per_block:].fill_(7)
