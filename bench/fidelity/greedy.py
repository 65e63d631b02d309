"""Owns the count of greedy answers that stay the same when K and V of their prompts were coded.

`.venv/bin/python bench/fidelity/greedy.py` prints the table: 1,000 prompts of 199 tokens, 64 tokens each.
"""

from __future__ import annotations

import argparse
import copy

import ladder
import torch
from ladder import FLOAT32, Stored, held_out, kept_as, load, options_of
from table import Table
from transformers.cache_utils import DynamicCache

RESTORED, PROMPT, ANSWER, BATCH = 192, 199, 64, 50
#: Computed in float32, so that only the codec changes values. Raw and lossless restore all bytes and are left out.
CODECS = {"int8-mean-had": 4, "int8": 2}


def coded(cache: DynamicCache, codec: Stored) -> DynamicCache:
    cache = copy.deepcopy(cache)
    for layer in cache.layers:
        pairs = [
            codec(*pair) for pair in zip(layer.keys.split(1), layer.values.split(1), strict=True)
        ]
        layer.keys, layer.values = (torch.cat(side) for side in zip(*pairs, strict=True))
    return cache


@torch.no_grad()
def answers(model: torch.nn.Module, tail: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    said = []
    for _ in range(ANSWER):
        tail = model(tail, past_key_values=cache).logits[:, -1].argmax(-1, keepdim=True)
        said.append(tail)
    return torch.cat(said, 1)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=1000)
    options = options_of(parser)
    # Blocks may span the whole restored prefix, because vectors are coded one by one.
    ladder.BLOCK = RESTORED
    model = load(options)
    same = dict.fromkeys(CODECS, 0)
    alike = dict.fromkeys(CODECS, 0)
    prompts = torch.stack(held_out(options.prompts, PROMPT, options.model)).to(model.device)
    for at, batch in enumerate(prompts.split(BATCH)):
        held = DynamicCache()
        model(batch[:, :RESTORED], past_key_values=held)
        tail = batch[:, RESTORED:]
        cold = answers(model, tail, copy.deepcopy(held))
        for name, number in CODECS.items():
            codec = Stored(number, FLOAT32)
            equal = (answers(model, tail, coded(held, codec)) == cold).long().cumprod(1)
            codec.close()
            same[name] += int(equal[:, -1].sum())
            alike[name] += int(equal.sum())
        print(f"{(at + 1) * BATCH} prompts: {same}", flush=True)
    equal, before = f"answers equal to the last of {ANSWER} tokens", "tokens before the first other"
    table = Table(["codec", equal, before])
    for name in CODECS:
        share = 100 * alike[name] / (len(prompts) * ANSWER)
        table.add(name, f"{same[name]} of {len(prompts)}", f"{share:.1f} %")
    table.keep(kept_as("greedy", options), is_saved=options.save)


if __name__ == "__main__":
    main()
