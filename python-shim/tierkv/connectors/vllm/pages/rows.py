"""Moves many blocks of a group at once: as rows of a dense buffer beside the pages, in the order of a slot's bytes."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tierkv.connectors.vllm.pages.specs import Group

#: Element types, widest first, because a copy of wider elements is shorter.
_WIDTHS = (torch.int64, torch.int32, torch.int16, torch.uint8)


class Rows:
    """`layers`: for each (blocks, ...), such that a block in the tensor's own order has a slot's bytes."""

    def __init__(self, layers: Sequence[torch.Tensor]) -> None:
        self._layers = [widest((layer,))[0] for layer in layers]
        stacked = stack(self._layers)
        self._by_block = None if stacked is None else stacked.movedim(1, 0)
        self._sizes = [
            layer[0].numel() * layer.element_size() if layer.shape[0] else 0
            for layer in self._layers
        ]
        self.row_bytes = sum(self._sizes)

    def gather(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Give blocks as uint8 (blocks, row_bytes), dense. `block_ids`: int64, on the pages' device."""
        count = block_ids.numel()
        if self._by_block is not None:
            return self._by_block[block_ids].contiguous().view(count, -1).view(torch.uint8)
        rows = torch.empty((count, self.row_bytes), dtype=torch.uint8, device=block_ids.device)
        for layer, part in zip(self._layers, rows.split(self._sizes, dim=1), strict=True):
            part.copy_(layer.index_select(0, block_ids).view(count, -1).view(torch.uint8))
        return rows

    def scatter(self, block_ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Overwrite blocks with rows as `gather` gives them. No id may occur twice."""
        count = block_ids.numel()
        if self._by_block is not None:
            page = self._by_block.shape[1:]
            self._by_block[block_ids] = rows.view(self._by_block.dtype).view(count, *page)
            return
        for layer, part in zip(self._layers, rows.split(self._sizes, dim=1), strict=True):
            page = part.contiguous().view(layer.dtype).view(count, *layer.shape[1:])
            layer.index_copy_(0, block_ids, page)


class PartRows:
    """Rows of pages whose K and V lie apart: a slot has them side by side, (layers, heads, tokens, K then V).

    `keys`, `values`: for each layer (blocks, heads, ...), the rest in the order of a head's (tokens, dim) in a slot.
    """

    def __init__(
        self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], group: "Group"
    ) -> None:
        self._layers = list(zip(keys, values, strict=True))
        self._group = group
        self.row_bytes = group.block_bytes

    def gather(self, block_ids: torch.Tensor) -> torch.Tensor:
        """As `Rows.gather`."""
        group, count = self._group, block_ids.numel()
        shape = (count, self.row_bytes)
        rows = torch.empty(shape, dtype=torch.uint8, device=block_ids.device)
        for layer, halves in zip(self._layers, self._halves(rows), strict=True):
            for pages, half in zip(layer, halves, strict=True):
                taken = pages.index_select(0, block_ids)
                half.copy_(taken.reshape(count, group.heads, group.block_tokens, -1))
        return rows

    def scatter(self, block_ids: torch.Tensor, rows: torch.Tensor) -> None:
        """As `Rows.scatter`."""
        count = block_ids.numel()
        for layer, halves in zip(self._layers, self._halves(rows), strict=True):
            for pages, half in zip(layer, halves, strict=True):
                pages.index_copy_(0, block_ids, half.reshape(count, *pages.shape[1:]))

    def _halves(self, rows: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Show K and V of each layer in rows: (blocks, heads, tokens, dim)."""
        group = self._group
        shape = (len(self._layers), group.heads, group.block_tokens, group.dim_k + group.dim_v)
        by_layer = rows.view(group.dtype).unflatten(-1, shape).unbind(1)
        return [(layer[..., : group.dim_k], layer[..., group.dim_k :]) for layer in by_layer]


def widest(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Show tensors of one type with the widest elements that all of them can be shown with."""
    for dtype in _WIDTHS:
        if dtype.itemsize < tensors[0].element_size():
            continue
        try:
            return tuple(tensor.view(dtype) for tensor in tensors)
        except RuntimeError:  # strides or the length of a row are no multiple of it
            continue
    return tensors


def stack(layers: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Show all layers as one strided tensor when they lie evenly in one allocation (vLLM 0.29 and later)."""
    first = layers[0]
    base = first.untyped_storage().data_ptr()
    alike = all(
        layer.untyped_storage().data_ptr() == base
        and layer.dtype == first.dtype
        and layer.shape == first.shape
        and layer.stride() == first.stride()
        for layer in layers
    )
    if not alike:
        return None
    offsets = [layer.storage_offset() for layer in layers]
    steps = {later - earlier for earlier, later in itertools.pairwise(offsets)}
    if len(steps) > 1 or (steps and min(steps) <= 0):
        return None
    step = steps.pop() if steps else first.shape[0] * first.stride(0)
    return torch.as_strided(first, (len(layers), *first.shape), (step, *first.stride()), offsets[0])
