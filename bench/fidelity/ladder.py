"""Owns the comparison of codecs for K and V on the trained model: the cost of each, and of codecs tierKV lacks.

K and V of prompts are coded and decoded; then the probabilities of the text's continuation are compared with those
of unchanged K and V. tierKV's codecs run in crates/core/examples/through_codec.rs.
`.venv/bin/python bench/fidelity/ladder.py` prints the table of docs/fidelity.md.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from table import Table
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
from tried import TRIED, Pair, Tried, rounded

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "crates" / "target" / "release" / "examples" / "through_codec"
MODEL = ROOT / "bench" / "fidelity" / "model"
CONTEXT, CONTINUED = 192, 64
#: Keeps a whole conversation within the training length, because divergence grows by itself beyond.
TURN, TURNS = 32, 11
#: Tokens of a block, and ids of dtypes (docs/protocol.md, section 1).
BLOCK, BF16, FLOAT32 = 16, 1, 3


def build_codecs() -> None:
    if shutil.which("cargo") is None and PROGRAM.exists():
        return  # built elsewhere, because this machine has no compiler
    build = ["cargo", "build", "--release", "-p", "tierkv-core", "--example", "through_codec"]
    subprocess.run(build, cwd=ROOT / "crates", check=True)


class Stored:
    """A codec of tierKV: sends blocks of K and V through the core and back."""

    def __init__(self, codec: int, dtype: int = FLOAT32) -> None:
        self._codec, self._dtype = codec, dtype
        self._pipe: subprocess.Popen[bytes] | None = None
        self.elements = self.payload_bytes = 0

    def __call__(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        both = torch.stack([k, v]).squeeze(1).cpu()
        blocks = both.unflatten(2, (-1, BLOCK)).permute(2, 0, 1, 3, 4)
        back = torch.stack([self._through(block.contiguous()) for block in blocks])
        decoded = back.permute(1, 2, 0, 3, 4).flatten(2, 3).unsqueeze(1).to(k.device)
        return decoded[0], decoded[1]

    def _through(self, block: torch.Tensor) -> torch.Tensor:
        stored = block.bfloat16() if self._dtype == BF16 else block
        page = stored.view(torch.uint8).numpy().tobytes()
        pipe = self._pipe or self._open(block.shape[1], block.shape[3])
        assert pipe.stdin is not None and pipe.stdout is not None
        pipe.stdin.write(page)
        pipe.stdin.flush()
        self.payload_bytes += int.from_bytes(pipe.stdout.read(8), "little")
        self.elements += block.numel()
        back = torch.frombuffer(bytearray(pipe.stdout.read(len(page))), dtype=stored.dtype)
        return back.view(block.shape).float()

    def _open(self, heads: int, dim: int) -> subprocess.Popen[bytes]:
        numbers = [str(number) for number in (self._codec, self._dtype, BLOCK, heads, dim)]
        self._pipe = subprocess.Popen(
            [PROGRAM, *numbers], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._pipe

    def close(self) -> None:
        if self._pipe is not None and self._pipe.stdin is not None:
            self._pipe.stdin.close()
            self._pipe.wait()


LADDER: list[tuple[str, Stored | Tried]] = [
    ("bf16", Tried(rounded, rounded, lambda _: 16)),
    ("lossless", Stored(1, BF16)),
    ("int8", Stored(2)),
    ("int8-mean-had", Stored(4)),
    *TRIED,
]


def held_out(count: int, size: int, folder: Path = MODEL) -> list[torch.Tensor]:
    record = json.loads((folder / "training.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library = Path(sysconfig.get_paths()["stdlib"])
    ids: list[int] = []
    for name in record["held out"]:
        if (library / name).exists():
            ids += tokenizer.encode((library / name).read_text()).ids
    apart = (len(ids) - size) // count
    return [torch.tensor(ids[index * apart : index * apart + size]) for index in range(count)]


class Row:
    """Sums for one codec."""

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
    """Return a row for each codec, and the entropy of the exponents of K and V in bfloat16."""
    rows = [Row() for _ in LADDER]
    exponents = torch.zeros(256, dtype=torch.long)
    for prompt in prompts:
        context, rest, text = prompt[:CONTEXT], prompt[CONTEXT:-1], prompt[CONTEXT + 1 :]
        exact = go_on(model, context, rest, leave)
        for row, (_, codec) in zip(rows, LADDER, strict=True):

            def code(
                cache: DynamicCache,
                row: Row = row,
                through: Callable[[torch.Tensor, torch.Tensor], Pair] = codec,
            ) -> None:
                for layer in cache.layers:
                    before = layer.keys, layer.values
                    layer.keys, layer.values = through(*before)
                    row.add_values("k", before[0], layer.keys)
                    row.add_values("v", before[1], layer.values)
                    for values in before if row is rows[0] else ():
                        bits = values.bfloat16().view(torch.int16).int()
                        found = torch.bincount((bits >> 7 & 255).flatten(), minlength=256)
                        exponents.add_(found.cpu())

            row.add_answers(exact, go_on(model, context, rest, code), text)
    shares = exponents[exponents > 0].double() / exponents.sum()
    return rows, float(-(shares * shares.log2()).sum())


@torch.no_grad()
def drift(model: torch.nn.Module, texts: list[torch.Tensor], codec: Stored) -> list[float]:
    """Return the mean divergence of each turn, computed on coded K and V of all turns before and then coded itself."""
    sums = [0.0] * TURNS
    for text in texts:
        exact, lossy = DynamicCache(), DynamicCache()
        for turn, tokens in enumerate(text.split(TURN)):
            ours, theirs = (said(model, tokens, cache) for cache in (exact, lossy))
            sums[turn] += float((ours.exp() * (ours - theirs)).sum(-1).mean()) / len(texts)
            for layer in lossy.layers:
                layer.keys, layer.values = codec(layer.keys, layer.values)
    codec.close()
    return sums


def leave(_: DynamicCache) -> None:
    """Change nothing."""


def go_on(
    model: torch.nn.Module,
    context: torch.Tensor,
    rest: torch.Tensor,
    change: Callable[[DynamicCache], None],
) -> torch.Tensor:
    """Return log-probabilities of the token after each one of `rest`, after the context's cache was changed."""
    cache = DynamicCache()
    said(model, context, cache)
    change(cache)
    return said(model, rest, cache)


def said(model: torch.nn.Module, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
    """Return log-probabilities of the token after each one, on the CPU; K and V of `tokens` join the cache."""
    logits = model(tokens[None].to(model.device), past_key_values=cache).logits[0]
    return torch.log_softmax(logits.double().cpu(), -1)


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options that all programs beside this one take."""
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", action="store_true", help="keep the table for docs/fidelity.md")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    build_codecs()
    return options


def load(options: argparse.Namespace) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    return model.to(options.device).eval()


def kept_as(name: str, options: argparse.Namespace) -> str:
    """Return the name of a table; the small model's has no suffix."""
    return name if options.model == MODEL else f"{name}-{options.model.name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=50)
    options = options_of(parser)
    model = load(options)
    rows, entropy = measure(
        model, held_out(options.prompts, CONTEXT + CONTINUED + 1, options.model)
    )
    sizes = ["smaller than bf16", "SNR of K, dB", "of V"]
    table = Table(["codec", *sizes, "KLD mean", "p99.9", "PPL change", "top-1"])
    for row, (name, codec) in zip(rows, LADDER, strict=True):
        smaller = 2 * codec.elements / codec.payload_bytes
        table.add(name, f"{smaller:.2f}", *row.cells())
        codec.close()
    table.keep(f"ladder-{options.model.name}", is_saved=options.save)
    print(
        f"\nexponents: {entropy:.2f} bits; sign and fraction as they are: {16 / (8 + entropy):.2f} times smaller"
    )
    texts = held_out(options.prompts, TURNS * TURN, options.model)
    for name, number in (("int8", 2), ("int8-mean-had", 4)):
        turns = drift(model, texts, Stored(number))
        print(
            f"\n{name}, KLD mean by turns restored: " + ", ".join(f"{turn:.1e}" for turn in turns)
        )


if __name__ == "__main__":
    main()
