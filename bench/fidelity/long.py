"""Owns the cost of the offered codecs over long contexts: divergence and perplexity by length, and retrieval by depth.

`.venv/bin/python bench/fidelity/long.py` prints both tables. The small model was trained on 512 positions, so
perplexity rises beyond them. Retrieval is copying (induction): random tokens, other text, then the beginning
of the random tokens again; only the context holds their continuation.
"""

from __future__ import annotations

import argparse
import functools
import math
from pathlib import Path

import ladder
import torch
from ladder import FLOAT32, Stored, go_on, held_out, kept_as, leave, load, options_of
from table import Table
from transformers.cache_utils import DynamicCache

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
CONTINUED = 64
#: Tokens of a run to copy, tokens of it repeated, and distances between both.
RUN, SAID, DEPTHS, RUNS = 48, 16, (0, 64, 128, 256, 384, 1024), 24
OFFERED = {"int8-mean-had": 4, "int8": 2}


def coded(codec: Stored | None, cache: DynamicCache) -> None:
    if codec is None:
        return leave(cache)
    for layer in cache.layers:
        layer.keys, layer.values = codec(layer.keys, layer.values)
    return None


@torch.no_grad()
def answers(
    model: torch.nn.Module, context: torch.Tensor, rest: torch.Tensor, codec: Stored | None
) -> torch.Tensor:
    return go_on(model, context, rest, functools.partial(coded, codec))


def by_length(model: torch.nn.Module, options: argparse.Namespace) -> Table:
    table = Table(["context", "perplexity", *OFFERED], is_numbers=True)
    # Blocks may be longer, because vectors are coded one by one.
    ladder.BLOCK = LENGTHS[0]
    for length in LENGTHS:
        count = max(1, min(options.texts, LENGTHS[-1] // length))
        losses, found = [], {name: [] for name in OFFERED}
        for text in held_out(count, length + CONTINUED + 1, options.model):
            context, rest, truth = text[:length], text[length:-1], text[length + 1 :]
            exact = answers(model, context, rest, None)
            losses.append(-float(exact[torch.arange(len(truth)), truth].mean()))
            for name, number in OFFERED.items():
                codec = Stored(number, FLOAT32)
                theirs = answers(model, context, rest, codec)
                codec.close()
                found[name].append(float((exact.exp() * (exact - theirs)).sum(-1).mean()))
        means = [f"{sum(found[name]) / len(found[name]):.1e}" for name in OFFERED]
        loss = math.exp(sum(losses) / len(losses))
        table.add(f"{length:,}", f"{loss:.1f}", *means)
    return table


def by_depth(model: torch.nn.Module, folder: Path) -> Table:
    table = Table(["depth", "computed", *OFFERED], is_numbers=True)
    random = torch.Generator().manual_seed(1)
    for depth in DEPTHS:
        fillers = held_out(RUNS, max(depth, 1), folder)
        right = dict.fromkeys(["computed", *OFFERED], 0)
        for filler in fillers:
            run = torch.randint(1, model.config.vocab_size, (RUN,), generator=random)
            before = torch.cat([run, filler[:depth]])
            truth = run[SAID:]
            for name in right:
                codec = None if name == "computed" else Stored(OFFERED[name], FLOAT32)
                said = answers(model, before, run[:-1], codec)[SAID - 1 :].argmax(-1)
                right[name] += int((said == truth).sum())
                if codec is not None:
                    codec.close()
        shares = [f"{100 * right[name] / (RUNS * (RUN - SAID)):.1f} %" for name in right]
        table.add(str(depth), *shares)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=8)
    options = options_of(parser)
    model = load(options)
    by_depth(model, options.model).keep(kept_as("depth", options), is_saved=options.save)
    by_length(model, options).keep(kept_as("long", options), is_saved=options.save)


if __name__ == "__main__":
    main()
