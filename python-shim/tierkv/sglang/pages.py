"""Owns the geometry of SGLang's host pools: which are carried, and copies between a pool's pages and slots.

A slot holds one order whatever the pool's layout: (layer, K or V, token, head, dimension) for MHA and GQA,
(layer, token, row) for MLA.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import opaque_layout

#: Names of torch's types in `register`. Others, such as fp8, are opaque.
_DTYPES: Final = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
#: Axes of a page in each layout, to put them into (layer, token, head, dimension).
_ORDER: Final = {
    "layer_first": (0, 1, 2, 3),
    "page_first": (1, 0, 2, 3),
    "page_first_direct": (0, 1, 2, 3),
    "page_head": (2, 1, 0, 3),
}
#: Host pools that are carried, by class name. Subclasses hold their pages otherwise.
_MHA: Final = "MHATokenToKVPoolHost"
_MLA: Final = "MLATokenToKVPoolHost"
_LAYOUTS: Final = {
    _MHA: tuple(_ORDER),
    _MLA: ("layer_first", "page_first", "page_first_direct"),
}


class RefusedPoolError(ValueError):
    """A pool whose pages are not carried; the text names it, its value and the fix."""


@dataclass(frozen=True)
class Geometry:
    """One page of `row_bytes` for each token and layer; `heads`, `dim_k` and `dim_v` are 0 where it is opaque."""

    kind: str
    dtype: str
    layers: int
    tokens: int
    heads: int
    dim_k: int
    dim_v: int
    row_bytes: int
    first_layer: int
    format: str

    @property
    def page_bytes(self) -> int:
        return self.layers * self.tokens * self.row_bytes

    def registration(self) -> Frame:
        """Describe the one group of the engine's blocks, for `register`."""
        named = {"group": 0, "class": "kv", "tokens": self.tokens, "tail": 0}
        layer_bytes = self.tokens * self.row_bytes
        if not self.heads:
            return {**named, **opaque_layout(self.layers, layer_bytes)}
        item = self.row_bytes // (self.heads * (self.dim_k + self.dim_v))
        token_stride = self.heads * self.dim_k * item
        return {
            **named,
            "layout": "attention",
            "dtype": self.dtype,
            "layers": self.layers,
            "heads": self.heads,
            "dim_k": self.dim_k,
            "dim_v": self.dim_v,
            "layer_bytes": layer_bytes,
            "key_offset": 0,
            "value_offset": self.tokens * token_stride,
            "head_stride": self.dim_k * item,
            "token_stride": token_stride,
        }

    def digest(self) -> str:
        """Name the shape in the namespace."""
        return hashlib.sha256(json.dumps(vars(self), sort_keys=True).encode()).hexdigest()


class HostPages:
    """A host pool's pages, found by the index of their first token.

    Raises RefusedPoolError for a pool that is not carried.
    """

    def __init__(self, pool: Any) -> None:
        kind, layout = type(pool).__name__, str(pool.layout)
        if kind not in _LAYOUTS:
            raise RefusedPoolError(
                f"host pool {kind}: TierKVStorage carries {_MHA} (MHA, GQA) and {_MLA} (MLA); "
                "start SGLang without --hicache-storage-backend for this model"
            )
        if layout not in _LAYOUTS[kind]:
            raise RefusedPoolError(
                f"--hicache-mem-layout {layout}: TierKVStorage carries {', '.join(_LAYOUTS[kind])} of {kind}; "
                "choose one of them"
            )
        if pool.kv_buffer is None:
            raise RefusedPoolError(
                f"host pool {kind}: it has no memory of its own (--enable-linker-mla-dedup); leave that out"
            )
        if int(pool.dcp_size) != 1:
            raise RefusedPoolError(
                f"--dcp-size {pool.dcp_size}: a page lies in several ranks' memory; use --dcp-size 1"
            )
        self._pool = pool
        self._layout = layout
        self._is_mla = kind == _MLA
        self.geometry = self._describe(kind)
        geometry = self.geometry
        one = geometry.layers, geometry.tokens
        if self._is_mla:
            self._shape: tuple[int, ...] = (*one, 1, int(pool.kv_cache_dim))
        else:
            self._shape = (one[0], 2, one[1], int(pool.head_num), int(pool.head_dim))
        # Looked at once, so that a shape other than the expected one ends the start, not a request.
        for part in self._parts(0):
            if tuple(part.shape) != (*one, *self._shape[-2:]):
                raise RefusedPoolError(
                    f"host pool {kind}, {layout}: a page has the shape {tuple(part.shape)} where "
                    f"{(*one, *self._shape[-2:])} was expected; this release of SGLang is not known"
                )

    def _describe(self, kind: str) -> Geometry:
        pool = self._pool
        if not self._is_mla and int(pool.v_head_dim) != int(pool.head_dim):
            raise RefusedPoolError(
                f"host pool {kind}: heads of {pool.head_dim} for K and {pool.v_head_dim} for V are not carried"
            )
        for info in vars(pool).get("_buffer_infos", ()):
            if info.scales is not None:
                raise RefusedPoolError(
                    f"--kv-cache-dtype: scales beside the pages ({info.scales.layout.value}) are not carried; "
                    "use auto"
                )
        heads = 1 if self._is_mla else int(pool.head_num)
        width = int(pool.kv_cache_dim) if self._is_mla else 2 * int(pool.head_dim)
        is_plain = not self._is_mla and pool.dtype in _DTYPES
        return Geometry(
            kind=kind,
            dtype=_DTYPES.get(pool.dtype, "u8") if is_plain else "u8",
            layers=int(pool.layer_num),
            tokens=int(pool.page_size),
            heads=heads if is_plain else 0,
            dim_k=int(pool.head_dim) if is_plain else 0,
            dim_v=int(pool.head_dim) if is_plain else 0,
            row_bytes=heads * width * pool.dtype.itemsize,
            first_layer=int(pool.start_layer or 0),
            format=f"{pool.dtype} {pool.storage_format_tag or ''}",
        )

    def page_of(self, slot: memoryview) -> torch.Tensor:
        """Give a slot's bytes as a page: (layer, K or V, token, head, dimension), or (layer, token, 1, row) for MLA."""
        flat = torch.frombuffer(slot, dtype=torch.uint8, count=self.geometry.page_bytes)
        return flat.view(self._pool.dtype).view(self._shape)

    def save(self, index: int, slot: memoryview) -> None:
        """Copy the page whose first token lies at `index` into a slot."""
        page = self.page_of(slot)
        for part, target in zip(self._parts(index), self._targets(page), strict=True):
            target.copy_(part)

    def load(self, index: int, slot: memoryview) -> None:
        """Copy a slot into the page whose first token lies at `index`."""
        page = self.page_of(slot)
        for part, source in zip(self._parts(index), self._targets(page), strict=True):
            part.copy_(source)

    def _targets(self, page: torch.Tensor) -> list[torch.Tensor]:
        return [page] if self._is_mla else [page[:, 0], page[:, 1]]

    def _parts(self, index: int) -> list[torch.Tensor]:
        """Give a page in the pool as (layer, token, head, dimension), K and V apart."""
        buffers = [self._pool.kv_buffer] if self._is_mla else list(self._pool.kv_buffer)
        cut = _CUTS[self._layout]
        return [
            cut(buffer, index, self.geometry.tokens).permute(_ORDER[self._layout])
            for buffer in buffers
        ]


def _of_layers(buffer: torch.Tensor, index: int, tokens: int) -> torch.Tensor:
    return buffer[:, index : index + tokens]


def _of_tokens(buffer: torch.Tensor, index: int, tokens: int) -> torch.Tensor:
    return buffer[index : index + tokens]


def _of_pages(buffer: torch.Tensor, index: int, tokens: int) -> torch.Tensor:
    return buffer[index // tokens]


_CUTS: Final[dict[str, Callable[[torch.Tensor, int, int], torch.Tensor]]] = {
    "layer_first": _of_layers,
    "page_first": _of_tokens,
    "page_first_direct": _of_pages,
    "page_head": _of_pages,
}
