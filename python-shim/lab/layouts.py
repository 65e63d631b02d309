"""Owns the layouts the GPU kit takes along: pages of vLLM's own specs where its own code puts them.

`python -m lab.layouts` in `python-shim/` writes them anew; vLLM need not be installed where they are used.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from tierkv.connectors.vllm.api.compat import vllm_version
from tierkv.connectors.vllm.pages.specs import read_groups
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    compute_layout_strides,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

PLACE: Final = Path(__file__).resolve().parents[2] / "bench" / "gpu" / "layouts.json"
TOKENS: Final = 16
#: Sizes: `small` proves bytes anywhere, `large` (about 1 MiB a block, as of a model of 30 billion) is timed.
BLOCKS: Final = {"small": 5, "large": 257}
_LAYERS: Final = {"small": 2, "large": 32}
_BASE: Final[dict[str, Any]] = {
    "block_size": TOKENS,
    "num_kv_heads": 4,
    "head_size": 128,
    "dtype": torch.bfloat16,
}
_LATENT: Final = {**_BASE, "num_kv_heads": 1, "head_size": 576}
_FULL: Final = FullAttentionSpec(**_BASE)
#: By name: what attention backends keep (FlashAttention, FlashInfer, Triton; MLA kernels; gated delta nets).
SPECS: Final[dict[str, Any]] = {
    "attention bf16": _FULL,
    "attention fp8": replace(_FULL, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR),
    "latent bf16": MLAAttentionSpec(**_LATENT),
    "latent fp8, padded": MLAAttentionSpec(
        **_LATENT | {"dtype": torch.uint8, "head_size": 584}, alignment=1152
    ),
    "recurrent": MambaSpec(
        block_size=TOKENS,
        shapes=((3, 24), (4, 8, 8)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=2048,
        mamba_cache_mode="align",
    ),
}

Json = dict[str, Any]


def layouts() -> Json:
    """Give every spec in every layout and size, as numbers."""
    entries = [
        _entry(name, spec, layout, size)
        for name, spec in SPECS.items()
        for layout in KVCacheLayout
        for size in BLOCKS
    ]
    return {"vllm": vllm_version(), "entries": entries}


def _entry(name: str, spec: Any, layout: KVCacheLayout, size: str) -> Json:
    blocks, names = BLOCKS[size], [f"layer.{index}" for index in range(_LAYERS[size])]
    strides = compute_layout_strides(spec, blocks, len(names), layout)
    length = len(names) * blocks * max(spec.page_size_bytes, strides[1])
    raw = torch.empty(length, dtype=torch.int8, device="meta")
    at = {"layer_stride": strides[0], "block_stride": strides[1], "offset": 0}
    place = KVCacheTensor(size=length, layers=names, **at)
    views = create_kv_cache_views(raw, spec, blocks, layout, place)
    first = views[0]
    return {
        "name": name,
        "layout": layout.name,
        "size": size,
        "blocks": blocks,
        "bytes": length,
        "dtype": str(first.dtype).removeprefix("torch."),
        "shape": list(first.shape),
        "strides": list(first.stride()),
        "offsets": [view.storage_offset() for view in views],
        "group": _group(spec, names, blocks),
    }


def _group(spec: Any, names: list[str], blocks: int) -> Json:
    groups = [KVCacheGroupSpec(layer_names=names, kv_cache_spec=spec)]
    config = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups, hash_block_size=TOKENS
    )
    (group,) = read_groups(_engine(), config)
    return {
        "heads": group.heads,
        "dims": [group.dim_k, group.dim_v],
        "tokens": group.block_tokens,
        "dtype": str(group.dtype).removeprefix("torch."),
        "class": group.record_class,
        "tail": group.tail,
        "page_bytes": list(group.page_bytes),
    }


def _engine() -> Any:
    """As much of an engine's configuration as `read_groups` asks for."""
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    return SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        parallel_config=SimpleNamespace(**parallel),
        attention_config=SimpleNamespace(backend=None),
    )


def written() -> str:
    """Give what the file holds."""
    return json.dumps(layouts(), indent=2) + "\n"


if __name__ == "__main__":
    PLACE.write_text(written())
