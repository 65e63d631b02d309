"""Owns the test whether layers, K and V need their own bit widths: cost of each alone, and gain of the best split.

`.venv/bin/python bench/fidelity/apart.py` prints both. As in int8-mean-had, a Hadamard matrix turns K and not V.
"""

from __future__ import annotations

import itertools

import torch
from ladder import CONTEXT, CONTINUED, MODEL, held_out
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
from tried import Codec, scaled, turned

PROMPTS, BITS = 16, (4, 5, 6, 7, 8)
#: Size of a scale per head vector, in bits per number.
SCALE_BITS = 16 / 64
#: Uniform widths to compare a split with.
TARGETS = (5, 6, 7)
Split = dict[tuple[int, int], int]


def codec_of(part: int, bits: int) -> Codec:
    return turned(scaled(bits)) if part == 0 else scaled(bits)


class Bench:
    """All prompts as one batch."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        self.layers = self.model.config.num_hidden_layers
        texts = torch.stack(held_out(PROMPTS, CONTEXT + CONTINUED + 1))
        self._context, self._rest = texts[:, :CONTEXT], texts[:, CONTEXT:-1]
        self._exact = self._answers({})

    def slots(self) -> list[tuple[int, int]]:
        return list(itertools.product(range(self.layers), range(2)))

    def uniform(self, bits: int) -> Split:
        return dict.fromkeys(self.slots(), bits)

    @torch.no_grad()
    def _answers(self, split: Split) -> torch.Tensor:
        cache = DynamicCache()
        self.model(self._context, past_key_values=cache)
        for (layer, part), bits in split.items():
            name = ("keys", "values")[part]
            of = cache.layers[layer]
            setattr(of, name, codec_of(part, bits)(getattr(of, name)))
        logits = self.model(self._rest, past_key_values=cache).logits.double()
        return torch.log_softmax(logits, -1)

    def divergence(self, split: Split) -> float:
        theirs = self._answers(split)
        return float((self._exact.exp() * (self._exact - theirs)).sum(-1).mean())


def best(alone: dict[tuple[int, int], dict[int, float]], most: float) -> Split:
    """Returns the split of fewest bits whose divergences, each measured alone, sum to `most` at most."""
    slots = list(alone)
    choices = itertools.product(BITS, repeat=len(slots))
    within = (
        bits
        for bits in choices
        if sum(alone[slot][width] for slot, width in zip(slots, bits, strict=True)) <= most
    )
    return dict(zip(slots, min(within, key=sum), strict=True))


def main() -> None:
    torch.set_num_threads(1)
    bench = Bench()
    alone = {
        slot: {bits: bench.divergence({slot: bits}) for bits in BITS} for slot in bench.slots()
    }
    print("| layer | part | " + " | ".join(f"{bits} bits" for bits in BITS) + " |")
    print("|---:|---|" + "---:|" * len(BITS))
    for (layer, part), row in alone.items():
        cells = " | ".join(f"{row[bits]:.1e}" for bits in BITS)
        print(f"| {layer} | {'KV'[part]} | {cells} |")
    print("\n| bits of all | KLD mean | bits split | KLD mean | smaller by |")
    print("|---:|---:|---:|---:|---:|")
    for bits in TARGETS:
        uniform = bench.divergence(bench.uniform(bits))
        most = sum(row[bits] for row in alone.values())
        split = best(alone, most)
        mean = sum(split.values()) / len(split)
        saved = (bits + SCALE_BITS) / (mean + SCALE_BITS)
        found = bench.divergence(split)
        print(f"| {bits} | {uniform:.1e} | {mean:.2f} | {found:.1e} | {100 * (saved - 1):.1f} % |")


if __name__ == "__main__":
    main()
