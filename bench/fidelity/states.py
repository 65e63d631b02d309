"""Owns the cost of codecs for K and V, and of forms of states, in a hybrid model (Gated DeltaNet and attention).

`.venv/bin/python bench/fidelity/train.py --shape hybrid --steps 300 --into DIR` trains one in seven minutes; then
`PYTHONPATH=python-shim .venv/bin/python bench/fidelity/states.py DIR` prints the table, with the shim's own forms.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from ladder import BLOCK, CONTINUED, FLOAT32, Row, Stored, build_codecs, held_out
from table import Table
from tierkv.connectors.vllm.pages.states import StatePart
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

CONTEXT, GENERATIONS = 192, 10
Change = Callable[[DynamicCache], None]


def is_attention(layer: object) -> bool:
    return getattr(layer, "keys", None) is not None


def kv(number: int) -> Change:
    def change(cache: DynamicCache) -> None:
        codec = Stored(number, FLOAT32)
        for layer in filter(is_attention, cache.layers):
            layer.keys, layer.values = codec(layer.keys, layer.values)
        codec.close()

    return change


def states(form: str) -> Change:
    def change(cache: DynamicCache) -> None:
        for layer in cache.layers:
            if is_attention(layer):
                continue
            state = layer.recurrent_states[0]
            rows, dim = state.numel() // state.shape[-1], state.shape[-1]
            part = StatePart(form=form, dtype=state.dtype, rows=rows, dim=dim)
            page = state.contiguous().view(torch.uint8).flatten()
            back = part.decode(part.encode(page))
            state.copy_(back.clone().view(state.dtype).view(state.shape))

    return change


def both(*changes: Change) -> Change:
    def change(cache: DynamicCache) -> None:
        for each in changes:
            each(cache)

    return change


LADDER: dict[str, Change] = {
    "nothing": both(),
    "KV int8-mean-had": kv(4),
    "KV int8": kv(2),
    "states bf16": states("bf16"),
    "states int8": states("int8"),
    "KV int8-mean-had, states bf16": both(kv(4), states("bf16")),
    "KV int8-mean-had, states int8": both(kv(4), states("int8")),
}


def log_softmax(model: torch.nn.Module, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    return torch.log_softmax(model(tokens[None], past_key_values=cache).logits[0].double(), -1)


@torch.no_grad()
def measure(model: torch.nn.Module, texts: list[torch.Tensor]) -> None:
    table = Table(["what is coded", "KLD mean", "p99.9", "PPL change", "top-1"])
    rows = {name: Row() for name in LADDER}
    for row in rows.values():
        row.add_values("k", torch.ones(1), torch.zeros(1))
        row.add_values("v", torch.ones(1), torch.zeros(1))
    for text in texts:
        context, rest, truth = text[:CONTEXT], text[CONTEXT:-1], text[CONTEXT + 1 :]
        exact = None
        for name, change in LADDER.items():
            cache = DynamicCache(config=model.config)
            model(context[None], past_key_values=cache)
            change(cache)
            theirs = log_softmax(model, rest, cache)
            exact = theirs if exact is None else exact
            rows[name].add_answers(exact, theirs, truth)
    for name, row in rows.items():
        table.add(name, *row.cells()[2:])


@torch.no_grad()
def generations(model: torch.nn.Module, texts: list[torch.Tensor]) -> None:
    """Print the divergence of ten turns that are restored, continued and saved again."""
    for name in ("KV int8-mean-had", "states bf16", "states int8"):
        sums = [0.0] * (GENERATIONS + 1)
        for text in texts:
            exact, lossy = (DynamicCache(config=model.config) for _ in range(2))
            for turn, tokens in enumerate(text.split(CONTINUED)[: GENERATIONS + 1]):
                ours, theirs = (log_softmax(model, tokens, cache) for cache in (exact, lossy))
                sums[turn] += float((ours.exp() * (ours - theirs)).sum(-1).mean()) / len(texts)
                LADDER[name](lossy)
        print(f"\n{name}, KLD mean by turns restored: " + ", ".join(f"{x:.1e}" for x in sums))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    build_codecs()
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    texts = held_out(options.texts, CONTEXT + CONTINUED + 1, options.folder)
    measure(model, texts)
    size = (GENERATIONS + 1) * CONTINUED
    assert size % BLOCK == 0, "blocks are whole"
    generations(model, held_out(options.texts // 2, size, options.folder))


if __name__ == "__main__":
    main()
