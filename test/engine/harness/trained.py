"""The trained model of bench/fidelity: its held-out text, and the distance of two answers."""

from __future__ import annotations

import json
import math
import sysconfig
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from harness.processes import ROOT

MODEL = ROOT / "bench" / "fidelity" / "model"
RECORD: dict[str, Any] = json.loads((MODEL / "training.json").read_text())

Step = dict[str, float]
#: Tokens of a block at least.
BEGIN = 16


def held_out_prompts(count: int, tokens: int) -> list[list[int]]:
    """Returns consecutive pieces of modules that the model never saw."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    library = Path(sysconfig.get_paths()["stdlib"])
    # Another Python may lack some modules, or have slightly different ones.
    paths = [library / name for name in RECORD["held out"] if (library / name).exists()]
    ids = [tokenizer.encode(path.read_text()).ids for path in paths]
    # Consecutive pieces, or overlapping ones where the text is too short.
    room = sum(max(0, len(text) - tokens + 1) for text in ids)
    step = min(tokens, max(1, room // (count + count // 10 + len(ids))))
    found = [
        text[start : start + tokens]
        for text in ids
        for start in range(0, len(text) - tokens + 1, step)
    ]
    # Unique beginnings, because equal ones would share a block.
    pieces = list({tuple(piece[:BEGIN]): piece for piece in found}.values())
    apart = len(pieces) // count
    return [pieces[index * apart] for index in range(count)]


def divergence(cold: Step, other: Step) -> float:
    """Returns the Kullback-Leibler divergence over the tokens likeliest in both, with all others as one."""
    shared = cold.keys() & other.keys()
    total = sum(math.exp(cold[token]) * (cold[token] - other[token]) for token in shared)
    rests = [1 - math.fsum(math.exp(step[token]) for token in shared) for step in (cold, other)]
    if min(rests) > 0:
        total += rests[0] * math.log(rests[0] / rests[1])
    return max(total, 0.0)


def alike(ours: list[int], theirs: list[int]) -> int:
    """Returns the number of leading tokens that two answers share."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((index for index, (a, b) in pairs if a != b), len(ours))
