"""Owns the comparison of codecs for K and V on the trained model: what each would cost, before any is built.

K and V of prompts are coded and decoded, and the probabilities of the text's continuation compared with those
without.
`.venv/bin/python bench/fidelity/ladder.py` prints the table of docs/fidelity.md.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

MODEL = Path(__file__).resolve().parent / "model"
DIM, CONTEXT, CONTINUED, TURNS = 64, 192, 64, 11
#: Channels whose K is made larger, with their partners of the rotation, and how much; Q is made smaller by as much.
OUTLIERS, OUTLIER_SCALE = (5, 5 + DIM // 2, 19, 19 + DIM // 2), 16.0
#: Best levels for a normal distribution in 4 bits (Max 1960), the positive half.
LEVELS = (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733)
GROUP = 32

Codec = Callable[[torch.Tensor], torch.Tensor]


def scaled(bits: int, group: int = DIM) -> Codec:
    """Whole numbers with one bfloat16 scale per group."""
    top = (1 << (bits - 1)) - 1

    def code(x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(-1, (-1, group))
        scale = (parts.abs().amax(-1, keepdim=True) / top).bfloat16().float().clamp(min=2.0**-126)
        return ((parts / scale).round().clamp(-top, top) * scale).flatten(-2)

    return code


def lloyd_max(x: torch.Tensor) -> torch.Tensor:
    """Four bits for values that are normally distributed, with one bfloat16 scale per vector."""
    levels = torch.tensor([*(-level for level in reversed(LEVELS)), *LEVELS])
    scale = x.square().mean(-1, keepdim=True).sqrt().bfloat16().float().clamp(min=2.0**-126)
    edges = (levels[1:] + levels[:-1]) / 2
    return levels[torch.bucketize((x / scale).contiguous(), edges)] * scale


def hadamard() -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < DIM:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(DIM)


TURN = hadamard()


def turned(code: Codec) -> Codec:
    """Spreads each value over the whole vector, codes, and turns back."""
    return lambda x: code(x @ TURN) @ TURN


def with_outliers(code: Codec) -> Codec:
    """As if the model had channels of large K: the same function with other numbers. Synthetic."""
    scale = torch.ones(DIM)
    scale[list(OUTLIERS)] = OUTLIER_SCALE
    return lambda x: code(x * scale) / scale


#: Name, codec of K, codec of V, bits a number.
INT8, INT4 = scaled(8), scaled(4, GROUP)
LADDER: list[tuple[str, Codec, Codec, float]] = [
    ("bf16", lambda x: x.bfloat16().float(), lambda x: x.bfloat16().float(), 16),
    ("int8", INT8, INT8, 8 + 16 / DIM),
    ("int8-had", turned(INT8), INT8, 8 + 16 / DIM),
    ("k8v4", INT8, INT4, (8 + 16 / DIM + 4 + 16 / GROUP) / 2),
    ("int4", INT4, INT4, 4 + 16 / GROUP),
    ("int4-had", turned(lloyd_max), turned(lloyd_max), 4 + 16 / DIM),
    ("int8, outliers", with_outliers(INT8), INT8, 8 + 16 / DIM),
    ("int8-had, outliers", with_outliers(turned(INT8)), INT8, 8 + 16 / DIM),
]


def held_out(count: int, size: int) -> list[torch.Tensor]:
    record = json.loads((MODEL / "training.json").read_text())
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    library = Path(sysconfig.get_paths()["stdlib"])
    ids: list[int] = []
    for name in record["held out"]:
        if (library / name).exists():
            ids += tokenizer.encode((library / name).read_text()).ids
    apart = (len(ids) - size) // count
    return [torch.tensor(ids[index * apart : index * apart + size]) for index in range(count)]


class Row:
    """Sums of one codec."""

    def __init__(self) -> None:
        self.divergences: list[torch.Tensor] = []
        self.lost: list[float] = []
        self.same = self.steps = 0
        self.power = {"k": [0.0, 0.0], "v": [0.0, 0.0]}

    def add_values(self, side: str, before: torch.Tensor, after: torch.Tensor) -> None:
        self.power[side][0] += float(before.double().square().sum())
        self.power[side][1] += float((before - after).double().square().sum())

    def add_answers(self, ours: torch.Tensor, theirs: torch.Tensor, text: torch.Tensor) -> None:
        self.divergences.append((ours.exp() * (ours - theirs)).sum(-1))
        steps = torch.arange(len(text))
        self.lost.append(float((ours - theirs)[steps, text].mean()))
        self.same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        self.steps += len(text)

    def cells(self) -> list[str]:
        all_of_them = torch.cat(self.divergences)
        ratios = [10 * math.log10(signal / noise) for signal, noise in self.power.values()]
        return [
            *(f"{ratio:.0f}" for ratio in ratios),
            f"{all_of_them.mean():.1e}",
            f"{all_of_them.quantile(0.999):.1e}",
            f"{100 * math.expm1(sum(self.lost) / len(self.lost)):+.3f} %",
            f"{100 * self.same / self.steps:.2f} %",
        ]


@torch.no_grad()
def measure(model: torch.nn.Module, prompts: list[torch.Tensor]) -> tuple[list[Row], float]:
    """A row for each codec, and the entropy of the exponents of K and V in bfloat16."""
    rows = [Row() for _ in LADDER]
    exponents = torch.zeros(256, dtype=torch.long)
    for prompt in prompts:
        context, rest, text = prompt[:CONTEXT], prompt[CONTEXT:-1], prompt[CONTEXT + 1 :]
        exact = go_on(model, context, rest, leave)
        for row, (_, code_k, code_v, _) in zip(rows, LADDER, strict=True):

            def code(
                cache: DynamicCache, row: Row = row, k: Codec = code_k, v: Codec = code_v
            ) -> None:
                for layer in cache.layers:
                    before = layer.keys, layer.values
                    layer.keys, layer.values = k(layer.keys), v(layer.values)
                    row.add_values("k", before[0], layer.keys)
                    row.add_values("v", before[1], layer.values)
                    for values in before if row is rows[0] else ():
                        bits = values.bfloat16().view(torch.int16).int()
                        exponents.add_(torch.bincount((bits >> 7 & 255).flatten(), minlength=256))

            row.add_answers(exact, go_on(model, context, rest, code), text)
    shares = exponents[exponents > 0].double() / exponents.sum()
    return rows, float(-(shares * shares.log2()).sum())


@torch.no_grad()
def drift(model: torch.nn.Module, texts: list[torch.Tensor]) -> list[float]:
    """Mean divergence of each turn, computed on what INT8 left of all before it, and then coded itself."""
    sums = [0.0] * TURNS
    for text in texts:
        exact, lossy = DynamicCache(), DynamicCache()
        for turn, tokens in enumerate(text.split(CONTINUED)[:TURNS]):
            ours, theirs = (
                torch.log_softmax(model(tokens[None], past_key_values=cache).logits[0].double(), -1)
                for cache in (exact, lossy)
            )
            sums[turn] += float((ours.exp() * (ours - theirs)).sum(-1).mean()) / len(texts)
            for layer in lossy.layers:
                layer.keys, layer.values = INT8(layer.keys), INT8(layer.values)
    return sums


def leave(_: DynamicCache) -> None:
    """Changes nothing."""


def go_on(
    model: torch.nn.Module,
    context: torch.Tensor,
    rest: torch.Tensor,
    change: Callable[[DynamicCache], None],
) -> torch.Tensor:
    """Log-probabilities of what follows each token of `rest`, after the context's cache was changed."""
    cache = DynamicCache()
    model(context[None], past_key_values=cache)
    change(cache)
    return torch.log_softmax(model(rest[None], past_key_values=cache).logits[0].double(), -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    rows, entropy = measure(model, held_out(options.prompts, CONTEXT + CONTINUED + 1))
    print(
        "| codec | smaller than bf16 | SNR of K, dB | of V | KLD mean | p99.9 | PPL change | top-1 |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row, (name, _, _, bits) in zip(rows, LADDER, strict=True):
        print("| " + " | ".join([name, f"{16 / bits:.2f}", *row.cells()]) + " |")
    print(
        f"\nexponents: {entropy:.2f} bits; sign and fraction as they are: {16 / (8 + entropy):.2f} times smaller"
    )
    turns = drift(model, held_out(options.prompts, TURNS * CONTINUED))
    print("\nint8, KLD mean by turns restored: " + ", ".join(f"{turn:.1e}" for turn in turns))


if __name__ == "__main__":
    main()
