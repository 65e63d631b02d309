"""Finds the ranks that hold the same pages: one of them stores a block, and all restore it."""

import math
from typing import TYPE_CHECKING, Any, Final

from tierkv.connectors.vllm.api import compat

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_LATENT: Final = ("MLAAttentionSpec", "SlidingWindowMLASpec")
_HEADS: Final = ("FullAttentionSpec", "SlidingWindowSpec")
#: Drafts from the prompt itself need no KV cache of their own.
_DRAFTS_WITHOUT_LAYERS: Final = ("ngram", "ngram_gpu", "suffix")


def copies(config: "VllmConfig", kv_cache_config: Any) -> int:
    """Give how many neighbouring tensor-parallel ranks hold the same pages in every layer; 1 where that is not certain.

    Latents (MLA) are the same on all ranks; KV heads are repeated when there are more ranks than heads.
    """
    parallel = config.parallel_config
    ranks = int(parallel.tensor_parallel_size)
    # A pipeline's ranks know their own layers only, and could come to different answers.
    if ranks == 1 or parallel.pipeline_parallel_size > 1:
        return 1
    heads = _heads(config)
    found = [
        _of_layer(spec, ranks, heads)
        for group in kv_cache_config.kv_cache_groups
        for spec in compat.specs_by_layer(group.kv_cache_spec, group.layer_names).values()
    ]
    return math.gcd(*found) if found else 1


def has_draft_layers(config: "VllmConfig") -> bool:
    """Tell whether layers of a draft model may be among the engine's."""
    speculative = config.speculative_config
    return speculative is not None and speculative.method not in _DRAFTS_WITHOUT_LAYERS


def _of_layer(spec: Any, ranks: int, heads: int | None) -> int:
    kind = type(spec).__name__
    shards = compat.tensor_shards(spec)
    if shards is None and kind in _LATENT:
        shards = 1
    if shards is None and kind in _HEADS and spec.num_kv_heads == 1:
        shards = heads
    return ranks // shards if shards and ranks % shards == 0 else 1


def _heads(config: "VllmConfig") -> int | None:
    """Give the model's KV heads; None where its layers may differ in them."""
    if has_draft_layers(config):
        return None
    counts = config.model_config.hf_text_config.to_dict()
    named = {counts[name] for name in counts if name.endswith(("key_value_heads", "kv_heads"))}
    heads = int(config.model_config.get_total_num_kv_heads())
    return heads if named <= {heads} else None
