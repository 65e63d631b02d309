"""Owns the training of the small model that fidelity is measured with: text, tokenizer, weights and their record.

A Llama of 3 million parameters learns Python's own library and our docs, which every machine has; with `--shape hybrid`
a model of 5 million with recurrent states (Gated DeltaNet); `large` has 24 and `larger` 154 million parameters and
heads of 128 numbers, for a GPU (`--device cuda`). Run it with vLLM's Python:
`.venv/bin/python bench/fidelity/train.py`. Processors round differently, so another one makes other weights.
A model whose stamp is the same (options, seed, this script, text, torch) is not trained again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent / "model"
SEED, VOCAB, END = 7, 512, 0
HELD_OUT_SHARE = 0.03
BATCH, LENGTH, STEPS = 4, 512, 700
WARM_STEPS, FLAT_SHARE, LAST_RATE = 20, 0.3, 0.05
ADAMW_RATE, MUON_RATE = 3e-3, 0.02
HELD_OUT_TOKENS = 48 * LENGTH
POSITIONS_MAX = 4096
MODULE_BYTES_MAX, MORE_BYTES_MAX = 200_000, 60_000_000
#: Parts of the library that are data, tests, or long tables.
LEFT_OUT = ("test", "site-packages", "encodings", "pydoc_data", "__pycache__")


def library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def texts(more: Path | None) -> dict[str, str]:
    """The library's modules by their path in it, our pages, and the modules below `more`."""
    found = [
        path
        for path in sorted([*library().glob("*.py"), *library().glob("[a-l]*/*.py")])
        if not any(word in str(path.relative_to(library())) for word in LEFT_OUT)
    ]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    named = {str(path.relative_to(library())): path for path in found}
    named |= {str(path.relative_to(ROOT)): path for path in pages}
    if more is not None:
        named |= {f"more/{path.relative_to(more)}": path for path in modules_below(more)}
    return {name: path.read_text(errors="ignore") for name, path in named.items()}


def modules_below(folder: Path) -> list[Path]:
    """Modules that a person may have written, up to MORE_BYTES_MAX in all."""
    found, size = [], 0
    for path in sorted(folder.rglob("*.py")):
        if path.stat().st_size < MODULE_BYTES_MAX and size < MORE_BYTES_MAX:
            found.append(path)
            size += path.stat().st_size
    return found


def split(named: dict[str, str]) -> tuple[list[str], list[str]]:
    """Names to learn from, and names of library modules held out."""
    names = [name for name in named if name.endswith(".py") and not name.startswith("more/")]
    random.Random(SEED).shuffle(names)
    held_out = sorted(names[: round(len(names) * HELD_OUT_SHARE)])
    return [name for name in named if name not in set(held_out)], held_out


def learn_tokenizer(lines: list[str]) -> Tokenizer:
    """Byte-level BPE: any text has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<end>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, lines: list[str]) -> torch.Tensor:
    texts = tokenizer.encode_batch(lines)
    return torch.tensor([token for text in texts for token in (END, *text.ids)])


#: What both shapes have.
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": POSITIONS_MAX,
    "tie_word_embeddings": True,
    "bos_token_id": END,
    "eos_token_id": END,
}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=4, **_SIZES))


def large() -> PreTrainedModel:
    """24 million parameters, heads of 128 numbers."""
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "head_dim": 128}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=8, **(_SIZES | sizes)))


def larger() -> PreTrainedModel:
    """154 million parameters, heads of 128 numbers."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "head_dim": 128}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=13, **(_SIZES | sizes | heads)))


def hybrid() -> PreTrainedModel:
    """Two layers of Gated DeltaNet before each of attention."""
    state = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
    state |= {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
    layers = ["linear_attention", "linear_attention", "full_attention"] * 2
    return Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(num_hidden_layers=6, layer_types=layers, **state, **_SIZES)
    )


SHAPES = {"llama": llama, "large": large, "larger": larger, "hybrid": hybrid}


def train(
    model: PreTrainedModel, tokens: torch.Tensor, options: argparse.Namespace
) -> list[dict[str, float]]:
    """Muon moves the matrices, AdamW the rest; gives the losses on the way."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    adamw = torch.optim.AdamW(others, lr=ADAMW_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    muon = torch.optim.Muon(
        matrices, lr=MUON_RATE, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"
    )
    log: list[dict[str, float]] = []
    began = time.monotonic()
    step, done = 0, 0.0
    while done < 1:
        share = rate(done) * min(1, (step + 1) / WARM_STEPS)
        for optimizer, full in ((adamw, ADAMW_RATE), (muon, MUON_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = full * share
        starts = torch.randint(0, len(tokens) - options.length - 1, (options.batch,))
        rows = torch.stack([tokens[start : start + options.length + 1] for start in starts])
        loss = cross_entropy(model, rows.to(model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (adamw, muon):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        done = (
            (time.monotonic() - began) / options.seconds
            if options.seconds
            else step / options.steps
        )
        if step % 50 == 1 or done >= 1:
            log.append({"step": step, "loss": round(loss.item(), 3)})
            print(log[-1], flush=True)
    return log


def rate(done: float) -> float:
    """Flat at first, then falling in a line."""
    fallen = max(0.0, done - FLAT_SHARE) / (1 - FLAT_SHARE)
    return 1 - fallen * (1 - LAST_RATE)


def cross_entropy(model: PreTrainedModel, rows: torch.Tensor) -> torch.Tensor:
    with torch.autocast(rows.device.type, torch.bfloat16):
        logits = model(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(
        logits.float().reshape(-1, VOCAB), rows[:, 1:].reshape(-1)
    )


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, tokens: torch.Tensor) -> float:
    rows = tokens[:HELD_OUT_TOKENS].to(model.device).view(-1, LENGTH).split(BATCH)
    return sum(cross_entropy(model, part).item() for part in rows) / len(rows)


def unigram_loss(learnt: torch.Tensor, held_out: torch.Tensor) -> float:
    counts = np.bincount(learnt.numpy(), minlength=VOCAB) + 1
    return float(-np.log(counts / counts.sum())[held_out.numpy()].mean())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def stamp(options: argparse.Namespace, named: dict[str, str]) -> str:
    """Name everything that decides what is learnt; where it lies and how fast it runs are left out."""
    decides = {key: value for key, value in vars(options).items() if key not in _NOT_LEARNT}
    text = hashlib.sha256()
    for part in (part for pair in named.items() for part in pair):
        data = part.encode()
        text.update(len(data).to_bytes(8, "big") + data)
    decides |= {"seed": SEED, "script": sha256(Path(__file__)), "text": text.hexdigest()}
    decides |= {"torch": torch.__version__}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


_NOT_LEARNT = ("into", "more", "threads")


def finished(folder: Path, wanted: str) -> bool:
    """Tell whether the folder holds a model of this stamp, whole: its record is written last."""
    try:
        record = json.loads((folder / "training.json").read_text())
        return record.get("stamp") == wanted and all(
            sha256(folder / name) == digest for name, digest in record["sha256"].items()
        )
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embeddings
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = model.config.to_dict() | {
        "architectures": [type(model).__name__],
        "dtype": "bfloat16",
    }
    write_json(folder / "config.json", settings)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS_MAX}
    write_json(folder / "tokenizer_config.json", names | {"eos_token": "<end>"})


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def place(shape: str) -> Path:
    """The repository keeps one shape; of each other the last one trained lies in the user's cache."""
    if shape == "llama":
        return FOLDER
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "tierkv", f"trained-{shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="llama")
    parser.add_argument(
        "--into", type=Path, help="without: the repository's, for other shapes a cache"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, help="instead of steps")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--length", type=int, default=LENGTH, help="positions it learns on")
    parser.add_argument("--more", type=Path, help="a folder whose modules are learnt from, too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    into = options.into or place(options.shape)
    named = texts(options.more)
    wanted = stamp(options, named)
    if finished(into, wanted):
        print(f"{into}: trained already, stamp {wanted[:12]}; remove the folder to train anew")
        return
    torch.manual_seed(SEED)
    torch.set_num_threads(options.threads)
    started = time.process_time()
    learnt, held_out = split(named)
    tokenizer = learn_tokenizer([named[name] for name in learnt if not name.startswith("more/")])
    tokens = encode(tokenizer, [named[name] for name in learnt])
    rest = encode(tokenizer, [named[name] for name in held_out])
    model = SHAPES[options.shape]().to(options.device)
    log = train(model, tokens, options)
    save(model, tokenizer, into)
    record = {
        "stamp": wanted,
        "seed": SEED,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "processor",
        "positions": options.length,
        "parameters": sum(value.numel() for value in model.parameters()),
        "text": {"files": len(named), "characters": sum(map(len, named.values()))},
        "tokens": {
            "learnt from": len(tokens),
            "seen": log[-1]["step"] * options.batch * options.length,
        },
        "nats a token": {
            "held out": round(held_out_loss(model, rest), 3),
            "unigram": round(unigram_loss(tokens, rest), 3),
        },
        "processor seconds": round(time.process_time() - started),
        "sha256": {name: sha256(into / name) for name in ("model.safetensors", "tokenizer.json")},
        "held out": held_out,
        "losses": log,
    }
    write_json(into / "training.json", record)
    json.dump({key: record[key] for key in ("nats a token", "processor seconds")}, sys.stdout)


if __name__ == "__main__":
    main()
