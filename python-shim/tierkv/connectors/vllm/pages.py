"""Finds a block's bytes in the engine's KV tensors: from shapes and strides, never from a layout's name."""

from collections.abc import Mapping, Sequence

import torch

from tierkv.connectors.vllm.rows import Rows, stack
from tierkv.connectors.vllm.specs import Group


class Pages:
    """Pairs up the bytes of a block in the engine and in a slot."""

    group: Group
    num_blocks: int
    device: torch.device
    #: Copies many blocks at once; None where a slot's bytes differ from the page's.
    rows: Rows | None

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


def make_pages(group: Group, tensors: Mapping[str, torch.Tensor], num_blocks: int) -> Pages:
    """Choose by the group's kind of pages. Raises ValueError when a tensor differs from the spec."""
    if group.parts:
        return StatePages(group, tensors, num_blocks)
    kind = OpaquePages if group.is_opaque else AttentionPages
    return kind(group, tensors, num_blocks)


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
    """Views of one group's KV tensors, block by block.

    Every view has the logical shape (layers, kernel blocks, heads, kernel tokens, dim_k + dim_v); a manager block is
    one or several kernel blocks (vLLM's `group_kernel_blocks`). Raises ValueError when a tensor differs from
    the spec.
    """

    def __init__(self, group: Group, tensors: Mapping[str, torch.Tensor], num_blocks: int) -> None:
        self.group = group
        self.num_blocks = num_blocks
        layers = [self._by_block(name, tensors[name]) for name in group.layer_names]
        self._stacked = stack(layers)
        self._layers = layers
        self.device = layers[0].device
        # A slot has a head's tokens side by side, whatever kernel block they lie in.
        self.rows = Rows([layer.transpose(1, 2) for layer in layers])

    def _by_block(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        group = self.group
        wanted = (
            f"(blocks, {group.heads} heads, tokens, {group.dim_k} + {group.dim_v}) of {group.dtype}"
        )
        if tensor.dim() != 4 or tensor.dtype != group.dtype or tensor.shape[0] % self.num_blocks:
            raise ValueError(
                f"layer {name}: expected {wanted}, got {tuple(tensor.shape)} of {tensor.dtype}"
            )
        kernel_blocks = tensor.shape[0] // self.num_blocks
        kernel_tokens = tensor.shape[2]
        content = (tensor.shape[1], kernel_tokens * kernel_blocks, tensor.shape[3])
        if content != (group.heads, group.block_tokens, group.dim_k + group.dim_v):
            raise ValueError(f"layer {name}: expected {wanted}, got {tuple(tensor.shape)}")
        if tensor.stride(3) != 1:
            raise ValueError(
                f"layer {name}: head vectors are not contiguous (strides {tensor.stride()})"
            )
        by_block: torch.Tensor = tensor.unflatten(0, (self.num_blocks, kernel_blocks))
        return by_block

    def pairs(
        self, block_id: int, slot_bytes: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        views = self.views(block_id)
        in_slot = self.slot_view(slot_bytes)
        slots = [in_slot] if len(views) == 1 else list(in_slot.split(1))
        return list(zip(views, slots, strict=True))

    def views(self, block_id: int) -> list[torch.Tensor]:
        """Give the page of one block as few views as the engine's memory allows: one, or one per layer."""
        check_block(block_id, self.num_blocks)
        if self._stacked is not None:
            return [self._stacked[:, block_id]]
        return [layer[block_id].unsqueeze(0) for layer in self._layers]

    def slot_view(self, slot_bytes: torch.Tensor) -> torch.Tensor:
        """Show a slot (uint8, at least `block_bytes` long) in the logical shape of `views`, layers first.

        The slot is dense as (layers, heads, tokens, K|V), so kernel blocks lie side by side along tokens. Leading
        dimensions stay.
        """
        group = self.group
        kernel_blocks = self._layers[0].shape[1]
        dense = slot_bytes[..., : group.block_bytes].view(group.dtype)
        tokens = (kernel_blocks, group.block_tokens // kernel_blocks)
        by_kernel: torch.Tensor = dense.unflatten(
            -1, (len(group.layer_names), group.heads, *tokens, group.dim_k + group.dim_v)
        )
        return by_kernel.movedim(-3, -4)

    def copy_all(
        self, pairs: Sequence[tuple[int, int]], slots: torch.Tensor, *, to_slot: bool
    ) -> None:
        """Copy block by block, with all views made once: making one block's views takes longer than its copy."""
        kept = self.slot_view(slots)
        if self._stacked is not None:
            sides = [(self._stacked.movedim(1, 0), kept)]
        else:
            sides = list(zip(self._layers, kept.unbind(1), strict=True))
        for block_id, slot in pairs:
            check_block(block_id, self.num_blocks)
            check_slot(slot, slots)
            for pages, in_slots in sides:
                page, in_slot = pages.select(0, block_id), in_slots.select(0, slot)
                target, source = (in_slot, page) if to_slot else (page, in_slot)
                target.copy_(source)
