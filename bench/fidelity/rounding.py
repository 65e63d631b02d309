"""Owns the cost of a changed last bit where a model computes in bfloat16, beside that of a codec.

`.venv/bin/python bench/fidelity/rounding.py` prints the table: divergence from the same model with unchanged K and V.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from ladder import BF16, CONTEXT, CONTINUED, FLOAT32, MODEL, Stored, build_codecs, go_on, held_out
from table import Table
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

Change = Callable[[DynamicCache], None]
#: Shares of K's elements with a flipped last bit.
SHARES = (0.0001, 0.01, 1.0)


def coded(number: int, dtype: torch.dtype) -> Change:
    def change(cache: DynamicCache) -> None:
        codec = Stored(number, FLOAT32 if dtype == torch.float32 else BF16)
        for layer in cache.layers:
            back = codec(layer.keys.float(), layer.values.float())
            layer.keys, layer.values = (side.to(dtype) for side in back)
        codec.close()

    return change


def flipped(share: float, dtype: torch.dtype) -> Change:
    whole = torch.int32 if dtype == torch.float32 else torch.int16

    def change(cache: DynamicCache) -> None:
        draws = torch.Generator().manual_seed(1)
        for layer in cache.layers:
            bits = layer.keys.contiguous().view(whole)
            chosen = torch.rand(bits.shape, generator=draws) < share
            layer.keys = torch.where(chosen, bits ^ 1, bits).view(dtype)

    return change


@torch.no_grad()
def answers(model: torch.nn.Module, texts: list[torch.Tensor], change: Change) -> torch.Tensor:
    return torch.stack([go_on(model, text[:CONTEXT], text[CONTEXT:], change) for text in texts])


def column(dtype: torch.dtype, texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval()
    changes: dict[str, Change] = {"nothing": lambda _: None}
    for share in SHARES:
        changes[f"the last bit of {100 * share:g} % of K"] = flipped(share, dtype)
    changes |= {name: coded(number, dtype) for name, number in (("int8", 2), ("int8-mean-had", 4))}
    return {name: answers(model, texts, change) for name, change in changes.items()}


def mean(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    return f"{float((ours.exp() * (ours - theirs)).sum(-1).mean()):.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--save", action="store_true", help="keep the table for docs/fidelity.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    build_codecs()
    texts = held_out(options.prompts, CONTEXT + CONTINUED)
    single, half = (column(dtype, texts) for dtype in (torch.float32, torch.bfloat16))
    table = Table(["what is changed in K and V", "KLD mean in float32", "in bfloat16"])
    for name in list(single)[1:]:
        table.add(name, mean(single["nothing"], single[name]), mean(half["nothing"], half[name]))
    table.add("nothing, bfloat16 against float32", "", mean(single["nothing"], half["nothing"]))
    table.keep("rounding", is_saved=options.save)


if __name__ == "__main__":
    main()
