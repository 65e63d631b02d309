"""Finds a block's bytes in the engine's KV tensors: from shapes, strides and proven orders, never a layout's name."""

from collections.abc import Mapping, Sequence

import torch

from tierkv.connectors.vllm.pages.orders import Order, PartOrder, plain_order
from tierkv.connectors.vllm.pages.rows import PartRows, Rows, stack, widest
from tierkv.connectors.vllm.pages.specs import Group


class Pages:
    """Pairs up the bytes of a block in the engine and in a slot."""

    group: Group
    num_blocks: int
    device: torch.device
    #: Copies many blocks at once; None where a slot's bytes differ from the page's.
    rows: Rows | PartRows | None

    def pairs(
        self, block_id: int, slot_bytes: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Give (engine's view, slot's view) of the same shape, as few as the engine's memory allows."""
        raise NotImplementedError

    def copy(self, block_id: int, slot_bytes: torch.Tensor, *, to_slot: bool) -> None:
        """Copy a block to its slot or back; on a device no further than queueing it on the current stream.

        `slot_bytes`: uint8, at least the group's `block_bytes` long. Raises ValueError for an invalid block.
        """
        for page, in_slot in self.pairs(block_id, slot_bytes):
            target, source = (in_slot, page) if to_slot else (page, in_slot)
            target.copy_(source, non_blocking=True)

    def copy_all(
        self, pairs: Sequence[tuple[int, int]], slots: torch.Tensor, *, to_slot: bool
    ) -> None:
        """Copy (block, slot) pairs as `copy` does one; `slots`: uint8 (slots, bytes of one). A CPU's."""
        for block_id, slot in pairs:
            self.copy(block_id, slots[check_slot(slot, slots)], to_slot=to_slot)


def make_pages(
    group: Group,
    tensors: Mapping[str, torch.Tensor],
    num_blocks: int,
    order: Order | None = None,
) -> Pages:
    """Choose by the group's kind of pages. Raises ValueError when a tensor differs from the spec.

    `order`: where K and V lie in a page (probe.py); None: as the tensors' shape says.
    """
    if group.parts:
        return StatePages(group, tensors, num_blocks)
    if group.is_opaque:
        return OpaquePages(group, tensors, num_blocks)
    return AttentionPages(group, tensors, num_blocks, order)


def check_block(block_id: int, num_blocks: int) -> None:
    """Raise ValueError for an invalid block."""
    if not 0 < block_id < num_blocks:  # block 0 is vLLM's null block
        raise ValueError(f"block {block_id} is not one of the engine's {num_blocks}")


def check_slot(slot: int, slots: torch.Tensor) -> int:
    """Give the slot's number; raise ValueError for an invalid one."""
    if not 0 <= slot < slots.shape[0]:
        raise ValueError(f"slot {slot} is not one of the arena's {slots.shape[0]}")
    return slot


class OpaquePages(Pages):
    """Whole pages, layer after layer, as bytes in the order of the tensor's own dimensions."""

    def __init__(self, group: Group, tensors: Mapping[str, torch.Tensor], num_blocks: int) -> None:
        self.group = group
        self.num_blocks = num_blocks
        self._layers = [
            self._by_block(name, tensors[name], size)
            for name, size in zip(group.layer_names, group.page_bytes, strict=True)
        ]
        self.device = self._layers[0].device
        self.rows = Rows(self._layers)

    def _by_block(self, name: str, tensor: torch.Tensor, page_bytes: int) -> torch.Tensor:
        """Show a layer as bytes, manager block by manager block."""
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"layer {name}: expected one KV tensor, got {type(tensor).__name__}")  # noqa: TRY004
        if tensor.dim() == 1 and tensor.is_contiguous() and tensor.shape[0] % self.num_blocks == 0:
            tensor = tensor.view(self.num_blocks, -1)  # a kind that lays out its own bytes
        if tensor.dim() < 2 or tensor.shape[0] % self.num_blocks or tensor.stride(-1) != 1:
            raise ValueError(
                f"layer {name}: expected (blocks, ...) with whole rows, got {tuple(tensor.shape)} "
                f"(strides {tensor.stride()})"
            )
        by_block = tensor.unflatten(0, (self.num_blocks, tensor.shape[0] // self.num_blocks))
        as_bytes: torch.Tensor = by_block.view(torch.uint8)
        if as_bytes[0].numel() != page_bytes:
            raise ValueError(
                f"layer {name}: expected {page_bytes} bytes a block, got {as_bytes[0].numel()} "
                f"in {tuple(tensor.shape)} of {tensor.dtype}"
            )
        return as_bytes

    def pairs(
        self, block_id: int, slot_bytes: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        check_block(block_id, self.num_blocks)
        found = []
        at = 0
        for layer in self._layers:
            page = layer[block_id]
            found.append((page, slot_bytes[at : at + page.numel()].view(page.shape)))
            at += page.numel()
        return found


class StatePages(OpaquePages):
    """Pages of recurrent states that take another form in a slot (states.py).

    Raises ValueError when a page is not one run of bytes.
    """

    def __init__(self, group: Group, tensors: Mapping[str, torch.Tensor], num_blocks: int) -> None:
        super().__init__(group, tensors, num_blocks)
        self.rows = None
        for name, layer in zip(group.layer_names, self._layers, strict=True):
            if not layer[0].is_contiguous():
                raise ValueError(
                    f"layer {name}: expected a state in one piece, got strides {layer.stride()}; "
                    'set [turbo_quant] states = "raw"'
                )

    def copy(self, block_id: int, slot_bytes: torch.Tensor, *, to_slot: bool) -> None:
        """Encode or decode part by part, where the page lies."""
        check_block(block_id, self.num_blocks)
        in_slot = 0
        for layer, parts in zip(self._layers, self.group.parts, strict=True):
            page = layer[block_id].view(-1)
            in_page = 0
            for part in parts:
                held = page[in_page : in_page + part.page_bytes]
                kept = slot_bytes[in_slot : in_slot + part.slot_bytes]
                if to_slot:
                    kept.copy_(part.encode(held), non_blocking=True)
                else:
                    held.copy_(part.decode(kept.to(held.device, non_blocking=True)))
                in_page += part.page_bytes
                in_slot += part.slot_bytes


class AttentionPages(Pages):
    """Views of one group's KV tensors, block by block; a slot holds them as (layers, heads, tokens, K then V).

    `order`: where K and V lie in a page, by default as the tensors' shape says. Views have the shape (layers, kernel
    blocks, heads, tokens, K then V) where V follows K in each token; else K and V have views of their own, with tokens
    and dimensions by the factors of their order. A manager block is one or several kernel blocks (vLLM's
    `group_kernel_blocks`). Raises ValueError when a tensor differs from the spec.
    """

    def __init__(
        self,
        group: Group,
        tensors: Mapping[str, torch.Tensor],
        num_blocks: int,
        order: Order | None = None,
    ) -> None:
        self.group = group
        self.num_blocks = num_blocks
        layers = [tensors[name] for name in group.layer_names]
        for name, layer in zip(group.layer_names, layers, strict=True):
            check_layer(group, name, layer, num_blocks)
        self._kernel_blocks = layers[0].shape[0] // num_blocks
        self.device = layers[0].device
        self._parts = [
            _Part(part, start, dim, [part.of_pages(layer, num_blocks) for layer in layers])
            for part, start, dim in _parts(group, order or plain_order(layers[0], group.dim_k))
        ]
        self._through_rows = self.device.type != "cpu" and len(self._parts) > 1
        # A slot has a head's tokens side by side, whatever kernel block they lie in.
        by_head = [[layer.transpose(1, 2) for layer in part.layers] for part in self._parts]
        if len(by_head) == 1:
            self.rows = Rows(by_head[0])
        else:
            keys, values = by_head
            self.rows = PartRows(keys, values, group)

    def pairs(
        self, block_id: int, slot_bytes: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        check_block(block_id, self.num_blocks)
        found = []
        for part in self._parts:
            in_slot = self._slot_view(part, slot_bytes)
            if part.stacked is not None:
                found.append((part.stacked[:, block_id], in_slot))
                continue
            views = [layer[block_id].unsqueeze(0) for layer in part.layers]
            found += zip(views, in_slot.split(1), strict=True)
        return found

    def vectors(self, slot_bytes: torch.Tensor) -> torch.Tensor:
        """Show a slot as (layers, heads, tokens, K then V)."""
        group = self.group
        dense = slot_bytes[..., : group.block_bytes].view(group.dtype)
        shape = (len(group.layer_names), group.heads, group.block_tokens, group.dim_k + group.dim_v)
        shown: torch.Tensor = dense.unflatten(-1, shape)
        return shown

    def read(self, block_id: int) -> torch.Tensor:
        """Give a copy of a block as (layers, heads, tokens, K then V), on the pages' device."""
        copied = torch.empty(self.group.block_bytes, dtype=torch.uint8, device=self.device)
        self.copy(block_id, copied, to_slot=True)
        return self.vectors(copied)

    def _slot_view(self, part: "_Part", slot_bytes: torch.Tensor) -> torch.Tensor:
        """Show a part of a slot in the shape of the part's views, layers first. Leading dimensions stay."""
        own = self.vectors(slot_bytes)[..., part.start : part.start + part.dim]
        tokens = self.group.block_tokens // self._kernel_blocks
        by_kernel = own.unflatten(-2, (self._kernel_blocks, tokens)).transpose(-3, -4)
        return part.order.of_vectors(by_kernel)

    def copy(self, block_id: int, slot_bytes: torch.Tensor, *, to_slot: bool) -> None:
        """Copy a block; on a device, one in another order passes through a dense row, as many do."""
        if not self._through_rows:
            super().copy(block_id, slot_bytes, to_slot=to_slot)
            return
        check_block(block_id, self.num_blocks)
        assert self.rows is not None
        ids = torch.tensor([block_id], device=self.device)
        kept = slot_bytes[: self.rows.row_bytes].unsqueeze(0)
        if to_slot:
            kept.copy_(self.rows.gather(ids), non_blocking=True)
        else:
            self.rows.scatter(ids, kept.to(self.device, non_blocking=True))

    def copy_all(
        self, pairs: Sequence[tuple[int, int]], slots: torch.Tensor, *, to_slot: bool
    ) -> None:
        """Copy block by block, with all views made once: making one block's views takes longer than its copy."""
        sides: list[tuple[torch.Tensor, ...]] = []
        for part in self._parts:
            kept = self._slot_view(part, slots)
            if part.stacked is not None:
                sides.append(widest((part.stacked.movedim(1, 0), kept)))
            else:
                sides += map(widest, zip(part.layers, kept.unbind(1), strict=True))
        for block_id, slot in pairs:
            check_block(block_id, self.num_blocks)
            check_slot(slot, slots)
            for pages, in_slots in sides:
                page, in_slot = pages.select(0, block_id), in_slots.select(0, slot)
                target, source = (in_slot, page) if to_slot else (page, in_slot)
                target.copy_(source)


class _Part:
    """K, V, or both where V follows K in each token: `dim` elements of a slot's vectors from `start` on.

    `layers`: of each layer (blocks, kernel blocks, heads, *tokens, *dims); `stacked`: all of them, layers first.
    """

    def __init__(
        self, order: PartOrder, start: int, dim: int, layers: Sequence[torch.Tensor]
    ) -> None:
        self.order = order
        self.start = start
        self.dim = dim
        self.layers = layers
        self.stacked = stack(layers)


def _parts(group: Group, order: Order) -> list[tuple[PartOrder, int, int]]:
    """Give the order, the start and the elements of each part."""
    joined = order.joined()
    if joined is not None:
        return [(joined, 0, group.dim_k + group.dim_v)]
    return [(order.key, 0, group.dim_k), (order.value, group.dim_k, group.dim_v)]


def check_layer(group: Group, name: str, tensor: torch.Tensor, num_blocks: int) -> None:
    """Raise ValueError unless a layer's tensor is what its spec says."""
    wanted = (
        f"(blocks, {group.heads} heads, tokens, {group.dim_k} + {group.dim_v}) of {group.dtype}"
    )
    if tensor.dim() != 4 or tensor.dtype != group.dtype or tensor.shape[0] % num_blocks:
        raise ValueError(
            f"layer {name}: expected {wanted}, got {tuple(tensor.shape)} of {tensor.dtype}"
        )
    tokens = tensor.shape[2] * (tensor.shape[0] // num_blocks)
    content = (tensor.shape[1], tokens, tensor.shape[3])
    if content != (group.heads, group.block_tokens, group.dim_k + group.dim_v):
        raise ValueError(f"layer {name}: expected {wanted}, got {tuple(tensor.shape)}")
    if tensor.stride(3) != 1:
        raise ValueError(
            f"layer {name}: head vectors are not contiguous (strides {tensor.stride()})"
        )
