"""Seeded checkpoints and prompts: written once per run, the same bytes every time."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from lab.checkpoint import Spec, write_checkpoint
from lab.geometries import GEOMETRIES
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from pathlib import Path

#: Model of every test that is not about geometry, small and deterministic under any schedule.
PLAIN = Spec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, vocab=512, dtype="float32")

#: Three layers with a recurrent state and one with attention.
HYBRID = Spec(kind="qwen3_5", hidden=128, layers=4, heads=4, kv_heads=2, head_dim=64, vocab=512)

#: Llama-3.1-8B's KV of a token, 128 KiB, with nearly no compute.
LLAMA_8B = GEOMETRIES["llama-3.1-8b"]


class Models:
    """Checkpoints by their specification."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Spec, Path] = {}

    def path(self, spec: Spec) -> str:
        if spec not in self._made:
            name = "-".join(str(value) for value in asdict(spec).values())
            write_checkpoint(self._folder / name, spec)
            self._made[spec] = self._folder / name
        return str(self._made[spec])


def write_adapter(folder: Path, spec: Spec, rank: int = 8, seed: int = 5) -> str:
    """Writes a LoRA adapter for a Llama's queries and values, strong enough to change answers; returns its folder."""
    chance = np.random.default_rng(seed)
    wide = {"q_proj": spec.heads * spec.head_dim, "v_proj": spec.kv_heads * spec.head_dim}
    tensors = {}
    for layer in range(spec.layers):
        for name, width in wide.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for side, shape in (("A", (rank, spec.hidden)), ("B", (width, rank))):
                values = chance.normal(0, 0.2, shape).astype(np.float32)
                tensors[f"{place}.lora_{side}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank}
    config |= {"target_modules": sorted(wide), "bias": "none", "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def prompt(seed: int, tokens: int, vocab: int = 512) -> list[int]:
    """Returns random tokens."""
    return random.Random(seed).choices(range(vocab), k=tokens)
