"""A program with mlx-lm and tierKV, in its own interpreter: computes, keeps and restores prompts on command.

Reads one JSON line per command from standard input, and answers each with one. Imports nothing of the other tests.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import sys
from dataclasses import fields
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    QuantizedKVCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from tierkv.mlx.kinds import tokens_in
from tierkv.mlx.tier import Tier

_LAYERS = 3
_COMMON = {
    "hidden_size": 128,
    "num_hidden_layers": _LAYERS,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
_GDN = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "num_experts_per_tok": 0,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 0,
    "mlp_only_layers": [],
    "moe_intermediate_size": 0,
    "partial_rotary_factor": 0.5,
    "full_attention_interval": 3,
}
_MAMBA = {"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}
#: Module of mlx-lm by shape, and its arguments beside the common ones.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "quantised": ("llama", {}),
    "rotating": ("llama", {}),
    "window": ("gemma3_text", {"sliding_window": 300, "sliding_window_pattern": 3}),
    "hybrid": ("qwen3_next", _GDN),
    "list": ("falcon_h1", _MAMBA),
}


def make_model(shape: str, seed: int) -> Any:
    """Make a model of random weights in bf16, equal for equal seeds."""
    module, more = SHAPES[shape]
    found = import_module(f"mlx_lm.models.{module}")
    given = {**_COMMON, **more, "model_type": module}
    known = {field.name for field in fields(found.ModelArgs)}
    mx.random.seed(seed)
    model = found.Model(found.ModelArgs(**{k: v for k, v in given.items() if k in known}))
    shaken = tree_map(
        lambda p: (mx.random.normal(p.shape) * 0.15 if p.ndim > 1 else p).astype(mx.bfloat16),
        model.parameters(),
    )
    model.update(shaken)
    mx.eval(model.parameters())
    return model


def maker_of(shape: str) -> Any:
    """Return how caches of a shape are made; None: by the model's default."""
    layers = range(_LAYERS)
    if shape == "quantised":
        return lambda: [QuantizedKVCache(group_size=64, bits=8) for _ in layers]
    if shape == "rotating":
        return lambda: [RotatingKVCache(max_size=300, keep=4) for _ in layers]
    return None


def prompt(seeds: list[int], tokens: int) -> list[int]:
    """Return chunks of 256 random tokens, one per seed, cut to a length."""
    text: list[int] = []
    for seed in seeds:
        chance = random.Random(seed)
        text += [chance.randrange(5, 1000) for _ in range(256)]
    return text[:tokens]


class Program:
    """State of one process."""

    def __init__(self, shape: str, seed: int, config: str) -> None:
        self.model = make_model(shape, seed)
        self.tier = Tier(self.model, maker_of(shape), {"config_path": config}, label=shape)

    def ready(self) -> dict[str, Any]:
        return {"ready": self.tier.wait_ready(60.0), "refused": self.tier.refused}

    def run(self, seeds: list[int], tokens: int, *, spoil: bool = False) -> dict[str, Any]:
        """Answer a prompt; return the restored tokens and the logits of its own prompt cache at that place."""
        text = prompt(seeds, tokens)
        before = self.tier.counters.get("tokens_restored", 0)
        cache, rest = self.tier.prepare(text)
        restored = self.tier.counters.get("tokens_restored", 0) - before
        if spoil:
            self._spoil(cache)
        at_rest = copy.deepcopy(cache)
        found = [int(token) for token, _ in zip(self._steps(rest, cache), range(6), strict=False)]
        kept = self.tier.keep([*text, *found[:-1]], cache)
        if not restored and can_trim_prompt_cache(cache):
            # The own hit: the cache of the whole prompt, cut where a restore would end.
            whole = (len(text) - 1) // 256 * 256
            trim_prompt_cache(cache, (tokens_in(cache) or 0) - whole)
            at_rest, rest = cache, text[whole:]
        logits = self.model(mx.array(rest)[None], cache=at_rest)[0, -1].astype(mx.float32)
        digest = hashlib.sha256(bytes(memoryview(logits))).hexdigest()
        named = {"restored": restored, "kept": kept, "logits": digest, "tokens": found}
        return {**named, "counters": self.tier.counters, "refused": self.tier.refused}

    def _steps(self, rest: list[int], cache: list[Any]) -> Any:
        for token, _ in generate_step(mx.array(rest), self.model, prompt_cache=cache):
            yield token

    def _spoil(self, cache: list[Any]) -> None:
        cache[0].keys = cache[0].keys[..., ::-1, :]

    def change_weights(self) -> dict[str, Any]:
        """Replace a weight, as training or an adapter does."""
        self.model.update(tree_map(lambda p: p * 1.01, self.model.parameters()))
        return {}

    def write_weights(self, *, as_item: bool) -> dict[str, Any]:
        """Write into a weight, which stays the same object."""
        (_, weight), *_ = tree_flatten(self.model.parameters())
        if as_item:
            weight[0] = weight[0] * 1.01
        else:
            weight *= 1.01
        return {}


def main() -> None:
    program = Program(**json.loads(sys.argv[-1]))
    sys.stdout.write(json.dumps(program.ready()) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        what, options = json.loads(line)
        sys.stdout.write(json.dumps(getattr(program, what)(**options)) + "\n")
        sys.stdout.flush()
    program.tier.close()


if __name__ == "__main__":
    main()
