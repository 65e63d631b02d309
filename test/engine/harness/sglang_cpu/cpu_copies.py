"""Page copies between SGLang's device and host pools by torch, for a machine without a GPU; a plug-in of SGLang."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tensors = list[torch.Tensor]


def direct(
    src_layers: Tensors, dst_layers: Tensors, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Both sides layer by layer; `page_size` is part of the replaced function's signature."""
    for one, other in zip(src_layers, dst_layers, strict=True):
        other[dst_indices] = one[src_indices]


def pages_to_layer(
    src_ptrs: Tensors,
    dst_ptrs: Tensors,
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    page_size: int,
) -> None:
    """Host (page, layer, token, ...) to one layer of the device."""
    pages, rows = src_indices // page_size, src_indices % page_size
    for one, other in zip(src_ptrs, dst_ptrs, strict=True):
        other[dst_indices] = one[pages, layer_id, rows].reshape(other[dst_indices].shape)


def layers_to_pages(
    src_ptrs: Tensors, dst_ptrs: Tensors, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """All layers of the device, those of K first, to the host's (page, layer, token, ...)."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages, rows = dst_indices // page_size, dst_indices % page_size
    for part, other in enumerate(dst_ptrs):
        for layer in range(layers):
            got = src_ptrs[part * layers + layer][src_indices]
            other[pages, layer, rows] = got.reshape(other[pages, layer, rows].shape)


def _rows(pointer: int, count: int, width: int) -> NDArray[np.uint8]:
    """Give rows of `width` bytes at an address."""
    room = (ctypes.c_uint8 * (count * width)).from_address(pointer)
    flat: NDArray[np.uint8] = np.ctypeslib.as_array(room)
    return flat.reshape(count, width)


def _copy_rows(src: int, dst: int, src_at: Any, dst_at: Any, width: int) -> None:
    to, come = np.asarray(dst_at), np.asarray(src_at)
    _rows(dst, int(to.max()) + 1, width)[to] = _rows(src, int(come.max()) + 1, width)[come]


def backup_page_first(
    *,
    src_k_layers: torch.Tensor,
    dst_k: torch.Tensor,
    src_v_layers: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    num_layers: int,
    dst_layout_dim: int,
) -> None:
    """Kernel I/O: layers of the device to the host's (token, layer, ...)."""
    for pointers, host in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        backup_page_first_mla(
            src_layers=pointers,
            dst=host,
            src_indices=src_indices,
            dst_indices=dst_indices,
            item_size=item_size,
            num_layers=num_layers,
            dst_layout_dim=dst_layout_dim,
        )


def backup_page_first_mla(
    *,
    src_layers: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    num_layers: int,
    dst_layout_dim: int,
) -> None:
    """Do the same for one buffer; `dst_layout_dim` are the bytes of a token's layers."""
    assert dst_layout_dim == num_layers * item_size
    src_at, dst_at = src_indices.numpy(), dst_indices.numpy()
    out = dst.view(torch.uint8).numpy().reshape(-1, num_layers, item_size)
    for layer, pointer in enumerate(src_layers.tolist()):
        out[dst_at, layer] = _rows(pointer, int(src_at.max()) + 1, item_size)[src_at]


def load_page_first(
    *,
    src_k: torch.Tensor,
    dst_k: torch.Tensor,
    src_v: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    **_sizes: int,
) -> None:
    """Kernel I/O: one layer of the host's (token, layer, ...) to the device."""
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        dst[dst_indices] = src[src_indices, layer_id].reshape(dst[dst_indices].shape)


def load_page_first_mla(
    *,
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    **_sizes: int,
) -> None:
    """Do the same for one buffer."""
    dst[dst_indices] = src[src_indices, layer_id].reshape(dst[dst_indices].shape)


def backup_layer_first(
    *,
    src_k_layers: torch.Tensor,
    dst_k_layers: torch.Tensor,
    src_v_layers: torch.Tensor,
    dst_v_layers: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    **_sizes: int,
) -> None:
    """Kernel I/O: layers of the device to layers of the host, both by address."""
    for src, dst in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers)):
        for one, other in zip(src.tolist(), dst.tolist(), strict=True):
            _copy_rows(one, other, src_indices, dst_indices, item_size)


def load_layer_first(
    *,
    src_k: torch.Tensor,
    dst_k: torch.Tensor,
    src_v: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    **_sizes: int,
) -> None:
    """Kernel I/O: one layer of the host to the device."""
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        dst[dst_indices] = src[src_indices]


def backup_layer_first_mla(
    *,
    src_layers: torch.Tensor,
    dst_layers: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    item_size: int,
    **_sizes: int,
) -> None:
    """Do the same for one buffer."""
    for one, other in zip(src_layers.tolist(), dst_layers.tolist(), strict=True):
        _copy_rows(one, other, src_indices, dst_indices, item_size)


def load_layer_first_mla(
    *,
    src: torch.Tensor,
    dst: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    **_sizes: int,
) -> None:
    """Kernel I/O: one layer of the host to the device, of one buffer."""
    dst[dst_indices] = src[src_indices]


def _plain(dims: Any, dtype: Any, device: Any, **_pinned: Any) -> torch.Tensor:
    """Host memory that no GPU pins."""
    return torch.zeros(dims, dtype=dtype, device=device)


def install() -> None:
    """Put the copies where SGLang's modules look for the GPU's."""
    from sglang.srt.mem_cache.pool_host import base, common, mha, mla  # noqa: PLC0415 - after its set-up

    # SGLang leaves 10 GiB of a machine's memory free, more than other tests leave it; pools of tests have megabytes.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    common.ALLOC_MEMORY_FUNCS["cpu"] = _plain
    for module in (mha, mla):
        module.transfer_kv_direct = direct
        module.transfer_kv_per_layer_direct_pf_lf = pages_to_layer
        module.transfer_kv_all_layer_direct_lf_pf = layers_to_pages
    mha.transfer_kv_all_layer_lf_pf = backup_page_first
    mha.transfer_kv_per_layer_pf_lf = load_page_first
    mha.transfer_kv_all_layer = backup_layer_first
    mha.transfer_kv_per_layer = load_layer_first
    mla.transfer_kv_all_layer_mla = backup_layer_first_mla
    mla.transfer_kv_per_layer_mla = load_layer_first_mla
    mla.transfer_kv_all_layer_mla_lf_pf = backup_page_first_mla
    mla.transfer_kv_per_layer_mla_pf_lf = load_page_first_mla
