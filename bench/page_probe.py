"""Owns the time that a worker takes at its start to find where its attention backend writes K and V.

`.venv/bin/python bench/page_probe.py` prints milliseconds for vLLM's own CPU writers and shapes of known models: of the
first probe in a process, which also loads code, and of the median and slowest of 20 later ones.
"""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch
from tierkv.connectors.vllm.probe import Prober
from tierkv.connectors.vllm.specs import Group
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

ROUNDS, BLOCKS = 20, 4
#: Tokens of the shortest block that vLLM's kernel for AMX takes.
TOKENS_OF_AMX = 32
#: Layers, heads of K and V, head dim, tokens of a block.
SHAPES = {
    "Gemma 3 270M": (18, 1, 256, 16),
    "Qwen2.5 1.5B": (28, 2, 128, 16),
    "Llama 3 70B": (80, 8, 128, 16),
    "Llama 3 70B, blocks of 128": (80, 8, 128, 128),
}
#: Kernel and element type; fp8 pages are opaque, and what the writer makes of them is digested instead.
KERNELS = [
    ("vec", torch.float32),
    ("vec", torch.bfloat16),
    ("amx", torch.bfloat16),
    ("vec", torch.uint8),
]


def layer_of(isa: str, dtype: torch.dtype, heads: int, dim: int) -> Any:
    """Return what the probe needs of one of vLLM's attention layers."""
    impl = object.__new__(CPUAttentionBackendImpl)
    impl.attn_type, impl.isa = "decoder", isa
    impl.kv_cache_dtype = "fp8_e4m3" if dtype == torch.uint8 else "auto"
    layer = SimpleNamespace(impl=impl, isa=isa, _k_scale_float=1.0, _v_scale_float=1.0)
    layer.num_kv_heads, layer.head_size = heads, dim
    return layer


def once(isa: str, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> tuple[float, str]:
    """Return milliseconds of one look at all layers, and what it found."""
    layers, heads, dim, tokens = shape
    names = tuple(f"layer.{number}" for number in range(layers))
    pages = torch.zeros((BLOCKS, heads, tokens, 2 * dim), dtype=dtype)
    given = (0, 0, 0) if dtype == torch.uint8 else (heads, dim, dim)
    group = Group(0, names, tokens, *given, dtype)
    config: Any = SimpleNamespace(
        compilation_config=SimpleNamespace(
            static_forward_context=dict.fromkeys(names, layer_of(isa, dtype, heads, dim))
        ),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
    )
    if dtype == torch.uint8:
        size = heads * tokens * 2 * dim
        group = Group(
            0, names, tokens, 0, 0, 0, dtype, page_bytes=(size,) * layers, page_format="fp8"
        )
    began = time.perf_counter()
    found = Prober(config, BLOCKS).look(group, dict.fromkeys(names, pages))
    return 1000 * (time.perf_counter() - began), found.text


def main() -> None:
    print(
        "| model | kernel, type | first | median | slowest of 20 | found |\n|---|---|---:|---:|---:|---|"
    )
    for name, shape in SHAPES.items():
        for isa, dtype in KERNELS:
            if isa == "amx" and shape[-1] < TOKENS_OF_AMX:
                continue
            first, text = once(isa, dtype, shape)
            rest = [once(isa, dtype, shape)[0] for _ in range(ROUNDS)]
            cells = [f"{ms:.1f}" for ms in (first, statistics.median(rest), max(rest))]
            print("|", " | ".join([name, f"{isa}, {dtype}", *cells, text[:60]]), "|")


if __name__ == "__main__":
    main()
