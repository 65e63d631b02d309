"""Seeded checkpoints and prompts: written once per run, the same bytes every time."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import TYPE_CHECKING

from tierkv.lab.checkpoint import Spec, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

#: The model of every test that is not about geometry: small, and equal to itself whatever the schedule.
PLAIN = Spec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, vocab=512, dtype="float32")

#: Three layers with a recurrent state and one with attention.
HYBRID = Spec(kind="qwen3_5", hidden=128, layers=4, heads=4, kv_heads=2, head_dim=64, vocab=512)


class Models:
    """Checkpoints by what they are made of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[Spec, Path] = {}

    def path(self, spec: Spec) -> str:
        if spec not in self._made:
            name = "-".join(str(value) for value in asdict(spec).values())
            write_checkpoint(self._folder / name, spec)
            self._made[spec] = self._folder / name
        return str(self._made[spec])


def prompt(seed: int, tokens: int, vocab: int = 512) -> list[int]:
    """Random tokens."""
    return random.Random(seed).choices(range(vocab), k=tokens)
