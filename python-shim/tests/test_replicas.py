"""Ranks that hold the same pages are recognised only where it is certain."""

from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm.pages.replicas import copies

from .support.engine import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    kv_cache_config,
    vllm_config,
)

ONE_HEAD = FullAttentionSpec(num_kv_heads=1, num_heads=1)
LATENT = MLAAttentionSpec(num_kv_heads=1, num_heads=1)


def of(*specs: Any, ranks: int = 4, heads: int = 2, **hf: int) -> int:
    config = vllm_config(world=ranks)
    config.model_config.get_total_num_kv_heads = lambda: heads
    config.model_config.hf_text_config.to_dict = lambda: {"num_key_value_heads": heads, **hf}
    return copies(config, kv_cache_config(*specs))


@pytest.mark.parametrize(
    ("specs", "options", "expected"),
    [
        ([LATENT], {}, 4),
        ([LATENT], {"ranks": 1}, 1),
        ([ONE_HEAD], {}, 2),
        ([ONE_HEAD], {"heads": 1}, 4),
        ([ONE_HEAD], {"heads": 4}, 1),
        ([ONE_HEAD], {"heads": 3}, 1),
        ([FullAttentionSpec()], {"heads": 8}, 1),
        ([ONE_HEAD, SlidingWindowSpec(num_kv_heads=1, sliding_window=8)], {}, 2),
        # States are cut by rank, so blocks of such a model are, too.
        ([ONE_HEAD, MambaSpec()], {}, 1),
        ([ONE_HEAD], {"num_global_key_value_heads": 4}, 1),
        ([FullAttentionSpec(max_tp_shards=2, num_kv_heads=1)], {"heads": 4}, 2),
        ([FullAttentionSpec(max_tp_shards=3)], {}, 1),
        ([], {}, 1),
    ],
)
def test_copies_are_counted_where_they_are_certain(
    specs: list[Any], options: dict[str, int], expected: int
) -> None:
    assert of(*specs, **options) == expected


def test_a_draft_model_or_a_pipeline_leaves_it_open() -> None:
    config = vllm_config(world=2)
    config.model_config.get_total_num_kv_heads = lambda: 1
    cache = kv_cache_config(ONE_HEAD)
    assert copies(config, cache) == 2
    for method, expected in (("ngram", 2), ("eagle", 1)):
        config.speculative_config = SimpleNamespace(method=method)
        assert copies(config, cache) == expected
    config.speculative_config = None
    config.parallel_config.pipeline_parallel_size = 2
    assert copies(config, cache) == 1
