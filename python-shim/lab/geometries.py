"""Owns the KV geometries of published models: layers, KV heads, dims and windows as published, next to no compute."""

from __future__ import annotations

from dataclasses import replace

from lab.checkpoint import Spec

#: What all have in common: wide KV, thin everything else.
_THIN = Spec(hidden=64, intermediate=128, vocab=512, max_position=131_072)

GEOMETRIES = {
    # 128 KiB a token.
    "llama-3.1-8b": replace(_THIN, layers=32, heads=8, kv_heads=8, head_dim=128),
    # 320 KiB.
    "llama-3.1-70b": replace(_THIN, layers=80, heads=8, kv_heads=8, head_dim=128),
    # 96 KiB. A dense stand-in: experts change nothing of what is kept.
    "qwen3-30b-a3b-dense": replace(
        _THIN, kind="qwen3", layers=48, heads=4, kv_heads=4, head_dim=128
    ),
    # 72 KiB in all, half of it within a window. Gemma 3's layers stand in: sinks are weights, not KV.
    "gpt-oss-120b-as-gemma3": replace(
        _THIN, kind="gemma3", layers=36, heads=8, kv_heads=8, head_dim=64, window=128
    ),
    # 68.6 KiB: one latent vector of 512 + 64 a layer.
    "deepseek-v3": replace(_THIN, kind="deepseek_v2", layers=61, heads=4, kv_heads=4, head_dim=128),
    # 32 KiB of attention (8 layers), and 24 layers with a state of 32 x 128 x 128 each.
    "qwen3.5-9b": replace(
        _THIN,
        kind="qwen3_5",
        layers=32,
        heads=4,
        kv_heads=4,
        head_dim=256,
        state_keys=16,
        state_values=32,
        state_dim=128,
    ),
    # 496 KiB in all, 80 KiB of it seen by all tokens, the rest within a window.
    "gemma-3-27b": replace(
        _THIN,
        kind="gemma3",
        layers=62,
        heads=16,
        kv_heads=16,
        head_dim=128,
        window=1024,
        global_every=6,
    ),
}
