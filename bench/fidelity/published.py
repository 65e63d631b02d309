"""Owns the judgement of codecs on a published model: what coded K and V of a prefix cost the tokens after it.

`published.py prefill MODEL --cache DIR --chats DIR` computes K and V of each text's first 512 and 2,048 tokens once,
in float32, with the logits of the 64 tokens after each, and keeps them; it goes on where it was stopped.
`published.py judge MODEL --cache DIR --codec NAME ...` codes the kept K and V, and computes those 64 tokens again.
`published.py table` puts all results that `--save` kept into the tables of docs/fidelity.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from codecs_tried import Layer, Through, find_codec
from safetensors import safe_open
from safetensors.torch import save_file
from table import Table
from texts import Text, texts
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache

#: Tokens of each kept prefix, and tokens judged after it.
PREFIXES, JUDGED = (512, 2048), 64
#: Tokens of a block in the engine's cache.
BLOCK = 16
#: Tokens of one step of a prefill, which bounds the attention's memory.
STEP = 512
#: The bound on the mean divergence, in nats a token.
BOUND = 1e-4
#: Codecs that are judged by default: tierKV's own, from its core, beside others.
CODECS = ("bf16", "int8", "int8-had", "int8-mean-had=core-4")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "published"


@dataclass
class Kept:
    """What is kept of one text and one prefix: K and V [layer, head, token, dim], ids, and logits [judged, word]."""

    path: Path
    prefix: int

    @property
    def is_there(self) -> bool:
        return self.path.exists()

    def save(self, cache: DynamicCache, ids: torch.Tensor, logits: torch.Tensor) -> None:
        both = {
            "k": torch.stack([layer.keys[0, :, : self.prefix] for layer in cache.layers]),
            "v": torch.stack([layer.values[0, :, : self.prefix] for layer in cache.layers]),
        }
        part = self.path.with_suffix(".part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_file({**both, "ids": ids.contiguous(), "logits": logits.contiguous()}, part)
        os.replace(part, self.path)

    def load(self) -> dict[str, torch.Tensor]:
        with safe_open(self.path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def kept(folder: Path, number: int, prefix: int) -> Kept:
    return Kept(folder / f"{prefix}-{number:02}.safetensors", prefix)


def load_model(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_after(model: torch.nn.Module, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    """Return logits [token, word] after each of `ids` [token]; their K and V join the cache."""
    return model(ids[None], past_key_values=cache).logits[0]


@torch.no_grad()
def prefill(model: torch.nn.Module, all_ids: Sequence[torch.Tensor], folder: Path) -> None:
    """Keep the shorter prefix of all texts, then the longer one, each continued from the shorter."""
    shorter = 0
    for prefix in PREFIXES:
        for number, ids in enumerate(all_ids):
            target = kept(folder, number, prefix)
            if target.is_there:
                continue
            began, cache = time.monotonic(), DynamicCache()
            if shorter:
                before = kept(folder, number, shorter).load()
                for at, (k, v) in enumerate(zip(before["k"], before["v"], strict=True)):
                    cache.update(k[None], v[None], at)
            for start in range(shorter, prefix, STEP):
                model(ids[None, start : start + STEP], past_key_values=cache, logits_to_keep=1)
            judged = ids[prefix : prefix + JUDGED]
            target.save(cache, ids[: prefix + JUDGED + 1], logits_after(model, judged, cache))
            print(f"{prefix} tokens, text {number}: {time.monotonic() - began:.0f} s", flush=True)
        shorter = prefix


@dataclass
class Sums:
    """The sums of one codec over all judged texts."""

    divergences: list[torch.Tensor] = field(default_factory=list)
    is_same: list[torch.Tensor] = field(default_factory=list)
    lost: list[torch.Tensor] = field(default_factory=list)
    #: By layer, the energy of K's part that varies over the prefix, and of the error in K.
    varying: torch.Tensor | None = None
    wrong: torch.Tensor | None = None
    bits: float = 0.0

    def add_k(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """Add K [layer, head, token, dim] before and after."""
        varying = (before - before.mean(2, keepdim=True)).double().square().sum((1, 2, 3))
        wrong = (after - before).double().square().sum((1, 2, 3))
        self.varying = varying if self.varying is None else self.varying + varying
        self.wrong = wrong if self.wrong is None else self.wrong + wrong

    def add_logits(self, ours: torch.Tensor, theirs: torch.Tensor, text: torch.Tensor) -> None:
        """Add the logits [token, word] of unchanged and of coded K and V, and the tokens that followed."""
        ours, theirs = (torch.log_softmax(side.double(), -1) for side in (ours, theirs))
        self.divergences.append((ours.exp() * (ours - theirs)).sum(-1))
        self.is_same.append(ours.argmax(-1) == theirs.argmax(-1))
        steps = torch.arange(len(text))
        self.lost.append((ours - theirs)[steps, text])

    def result(self) -> dict[str, float | int | list[float]]:
        every = torch.cat(self.divergences)
        means = [float(one.mean()) for one in self.divergences]
        assert self.varying is not None and self.wrong is not None
        ratios = 10 * torch.log10(self.varying / self.wrong.clamp(min=1e-300))
        spread = float(torch.tensor(means).std()) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        return {
            "texts": len(means),
            "bits": self.bits,
            "mean KLD": float(every.mean()),
            "standard error": spread,
            "worst text": max(means),
            "worst token": float(every.max()),
            "top-1": float(torch.cat(self.is_same).double().mean()),
            "perplexity change": math.expm1(float(torch.cat(self.lost).mean())),
            "worst layer": int(ratios.argmin()),
            "SNR of K that varies, worst layer": float(ratios.min()),
            "median layer": float(ratios.median()),
            "KLD by text": means,
        }


def layers_of(model: torch.nn.Module, prefix: int, block: int) -> list[Layer]:
    """Return what a codec may know of each layer beside K and V."""
    inner = model.model
    places = torch.arange(prefix)[None]
    kinds = getattr(model.config, "layer_types", None) or []
    found = []
    for at, layer in enumerate(inner.layers):
        attention = layer.self_attn
        one = torch.zeros(1, 1, 1)
        more = [kinds[at]] if len(set(kinds)) > 1 else []
        cos, sin = inner.rotary_emb(one, places, *more)
        dim = attention.head_dim
        bias = attention.k_proj.bias
        found.append(
            Layer(at, block, cos[0], sin[0], None if bias is None else bias.detach().view(-1, dim))
        )
    return found


def through(
    codec: Through, k: torch.Tensor, v: torch.Tensor, layers: Sequence[Layer], times: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Code and decode K and V [layer, head, token, dim] of all layers, `times` times over."""
    for _ in range(times):
        pairs = [codec(k[layer.number], v[layer.number], layer) for layer in layers]
        k, v = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    return k, v


@torch.no_grad()
def judge(
    model: torch.nn.Module, folder: Path, prefix: int, count: int, options: argparse.Namespace
) -> dict[str, Sums]:
    """Return the sums of each codec, over the kept texts."""
    sums = {name: Sums() for name in options.codec}
    codecs = {name: find_codec(name) for name in options.codec}
    layers = layers_of(model, prefix, options.block)
    for number in range(count):
        source = kept(folder, number, prefix)
        if not source.is_there:
            continue
        data = source.load()
        k, v = data["k"], data["v"]
        if options.input == "bfloat16":
            k, v = k.bfloat16().float(), v.bfloat16().float()
        judged, text = data["ids"][prefix:-1], data["ids"][prefix + 1 :]
        for name, total in sums.items():
            codec = codecs[name]
            coded = through(codec, k, v, layers, options.times)
            total.bits = codec.bits(k.shape[-1], options.block)
            total.add_k(data["k"], coded[0])
            cache = DynamicCache()
            for at, (one, other) in enumerate(zip(*coded, strict=True)):
                cache.update(one[None], other[None], at)
            theirs = logits_after(model, judged, cache)
            total.add_logits(data["logits"], theirs, text)
        if options.verbose:
            print(
                number,
                {name: f"{total.divergences[-1].mean():.1e}" for name, total in sums.items()},
                flush=True,
            )
        if options.save:
            save(folder.name, prefix, options, sums)
    return sums


def save(name: str, prefix: int, options: argparse.Namespace, sums: dict[str, Sums]) -> None:
    """Keep the results so far, so that a run that is stopped has the texts that it judged."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for codec, total in sums.items():
        label = codec.partition("=")[0]
        kind = f"{prefix}-{options.block}-{options.times}-{options.input}"
        of = {"model": name, "codec": label, "prefix": prefix, "block": options.block}
        of |= {"times": options.times, "input": options.input}
        target = RESULTS / f"{name}-{label}-{kind}.json"
        target.write_text(json.dumps({**of, **total.result()}, indent=1) + "\n")


def say(prefix: int, times: int, results: dict[str, dict[str, Any]]) -> None:
    again = f", coded {times} times" if times > 1 else ""
    print(f"\n{prefix} tokens of prefix{again}")
    head = ["codec", "bits", "texts", "KLD mean", "worst text", "worst token", "top-1"]
    table = Table([*head, "SNR of K that varies, worst layer (median)"])
    for name, row in results.items():
        worst = row["SNR of K that varies, worst layer"]
        table.add(
            name,
            f"{row['bits']:.2f}",
            str(row["texts"]),
            f"{row['mean KLD']:.1e} ± {row['standard error']:.0e}",
            f"{row['worst text']:.1e}",
            f"{row['worst token']:.1e}",
            f"{100 * row['top-1']:.2f} %",
            f"{worst:.1f} dB, layer {row['worst layer']} ({row['median layer']:.1f})",
        )


def chosen(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("stage", choices=["prefill", "judge", "table"])
    parser.add_argument("model", type=Path, nargs="?", help="a model's folder")
    parser.add_argument("--cache", type=Path, help="folder for kept K, V and logits")
    parser.add_argument(
        "--chats", type=Path, help="folder with the wheel of dialogues, for prefill"
    )
    parser.add_argument("--texts", type=int, default=32, help="how many texts, from the first")
    parser.add_argument("--codec", nargs="+", default=CODECS)
    parser.add_argument("--prefix", type=int, nargs="+", default=list(PREFIXES))
    parser.add_argument("--block", type=int, default=BLOCK, help="tokens of a block")
    parser.add_argument(
        "--times", type=int, default=1, help="how often K and V are coded and decoded"
    )
    parser.add_argument("--input", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--plugin", nargs="*", default=[], help="modules that add codecs to CODECS")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print each text's divergence")
    parser.add_argument("--save", action="store_true", help="keep results for docs/fidelity.md")
    return parser.parse_args()


def tables() -> None:
    """Write the tables of docs/fidelity.md from all kept results."""
    rows = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*-*.json"))]
    rows.sort(key=lambda row: (row["model"], row["prefix"], -row["bits"], -row["mean KLD"]))
    once = [row for row in rows if row["times"] == 1 and row["input"] == "float32"]
    head = ["model, tokens of prefix", "codec", "smaller than bf16", "texts", "KLD mean"]
    more = ["worst token", "top-1", "SNR of K, dB"]
    table = Table([*head, *more])
    for row in once:
        table.add(*cells(row))
    table.keep("published", is_saved=True)
    again = [row for row in rows if row["times"] > 1]
    if again:
        table = Table([*head, *more])
        for row in again:
            table.add(*cells(row))
        table.keep("published-again", is_saved=True)


def cells(row: dict[str, Any]) -> list[str]:
    times = f", coded {row['times']} times" if row["times"] > 1 else ""
    return [
        f"{row['model']}, {row['prefix']:,}{times}",
        row["codec"],
        f"{16 / row['bits']:.2f}",
        str(row["texts"]),
        f"{row['mean KLD']:.1e} ± {row['standard error']:.0e}",
        f"{row['worst token']:.1e}",
        f"{100 * row['top-1']:.2f} %",
        f"{row['SNR of K that varies, worst layer']:.1f} / {row['median layer']:.1f}",
    ]


def manifest(found: Sequence[Text]) -> list[dict[str, str]]:
    return [{"kind": text.kind, "name": text.name, "sha256": text.digest} for text in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    options = chosen(parser)
    if options.stage == "table":
        tables()
        return
    if options.model is None or options.cache is None:
        parser.error(f"{options.stage} needs a model's folder and --cache")
    torch.set_num_threads(options.threads)
    for plugin in options.plugin:
        importlib.import_module(plugin)
    name = options.model.resolve().name
    folder = options.cache / name
    if options.stage == "prefill":
        found = texts(options.chats)[: options.texts]
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        length = max(PREFIXES) + JUDGED + 1  # one to follow the last judged token
        all_ids = [torch.tensor(text.tokens(tokenizer, length)) for text in found]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "texts.json").write_text(json.dumps(manifest(found), indent=1) + "\n")
        prefill(load_model(options.model), all_ids, folder)
        return
    model = load_model(options.model)
    for prefix in options.prefix:
        sums = judge(model, folder, prefix, options.texts, options)
        results = {codec: total.result() for codec, total in sums.items() if total.divergences}
        if not results:
            raise SystemExit(f"--cache {folder}: no text of {prefix} tokens; run the prefill first")
        say(prefix, options.times, results)


if __name__ == "__main__":
    main()
