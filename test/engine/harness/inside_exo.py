"""EXO's own `KVPrefixCache` on a small random model, in EXO's environment; only its `.pth` file loads tierKV.

`inside_exo.py CHECKOUT SEED` answers one prompt, reports in a line of JSON, and waits for the end of standard input.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models import llama


class _Anything(types.ModuleType):
    """A module of which EXO's cache needs only names: its Rust part, and classes of its fork of mlx-lm."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def load_cache(checkout: str) -> Any:
    """Import EXO's module from its source; uninstallable modules are replaced, but no cache is."""
    os.environ.setdefault("EXO_DASHBOARD_DIR", "none")
    # Metadata for EXO's query of its own version, which an installed EXO has.
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder, "exo-0.dist-info")
        named.mkdir()
        (named / "METADATA").write_text("Metadata-Version: 2.1\nName: exo\nVersion: 0\n")
        sys.path[:0] = [f"{checkout}/src", folder]
        return import_cache()


def import_cache() -> Any:
    """Import the module, with a stand-in for each missing module."""
    sys.modules["mlx_lm.models.deepseek_v4"] = _Anything("mlx_lm.models.deepseek_v4")
    missing: list[str] = []
    while True:
        try:
            return importlib.import_module("exo.worker.engines.mlx.cache")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("exo") or error.name in missing:
                raise
            missing.append(error.name)
            module = _Anything(error.name)
            module.__path__ = []
            sys.modules[error.name] = module


def make_model(seed: int) -> Any:
    """Make a Llama of random weights in bf16."""
    mx.random.seed(seed)
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=128,
        num_hidden_layers=3,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rms_norm_eps=1e-5,
        vocab_size=1024,
        tie_word_embeddings=True,
    )
    model = llama.Model(args)
    model.update(
        tree_map(
            lambda p: (mx.random.normal(p.shape) * 0.15).astype(mx.bfloat16), model.parameters()
        )
    )
    mx.eval(model.parameters())
    return model


def main() -> None:
    checkout, seed, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with contextlib.redirect_stdout(sys.stderr):
        exo = load_cache(checkout)
    model = make_model(seed)
    prefixes = exo.KVPrefixCache(None)
    chance = random.Random(7)
    prompt = mx.array([chance.randrange(5, 1000) for _ in range(tokens)])
    prefixes.get_kv_cache(model, prompt[:2])  # EXO's warm-up brings the model
    keeper = vars(prefixes).get("_tierkv")
    tier = None if keeper is None else keeper.current
    ready = tier is not None and tier.wait_ready(60.0)
    cache, rest, index, exact = prefixes.get_kv_cache(model, prompt)
    model(rest[:-1][None], cache=cache)
    mx.eval([c.state for c in cache])
    prefixes.add_kv_cache(prompt, cache)
    found = [
        int(token)
        for (token, _), _ in zip(
            generate_step(prompt[-1:], model, prompt_cache=cache), range(6), strict=False
        )
    ]
    said = {"ready": ready, "restored": tokens - len(rest), "index": index, "exact": exact}
    sys.stdout.write(json.dumps({**said, "tokens": found}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
