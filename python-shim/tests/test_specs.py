"""Specs: what the shim can carry is described for the sidecar, everything else is refused by name and way out."""

from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import compat
from tierkv.connectors.vllm.specs import Group, read_groups

from .support.engine import FullAttentionSpec, kv_cache_config, make_group, vllm_config


class SlidingWindowSpec(FullAttentionSpec):
    """Has the name of vLLM's class."""


class MambaSpec(FullAttentionSpec):
    """Has the name of vLLM's class."""


def read(*specs: Any) -> list[Group]:
    return read_groups(vllm_config(), kv_cache_config(*specs))


def test_full_attention_becomes_a_group() -> None:
    assert read(FullAttentionSpec()) == [make_group()]


def test_a_group_registers_dense_slots() -> None:
    group = Group(0, ("a", "b"), 16, 2, 64, 32, torch.bfloat16)
    assert group.layer_bytes == 2 * 16 * 96 * 2
    assert group.registration() == {
        "group": 0,
        "class": "kv",
        "layout": "attention",
        "dtype": "bf16",
        "tokens": 16,
        "layers": 2,
        "heads": 2,
        "dim_k": 64,
        "dim_v": 32,
        "layer_bytes": 6144,
        "key_offset": 0,
        "value_offset": 128,
        "head_stride": 3072,
        "token_stride": 192,
    }


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([SlidingWindowSpec()], ["SlidingWindowSpec", "without --kv-transfer-config"]),
        ([MambaSpec()], ["MambaSpec", "layer.0"]),
        ([FullAttentionSpec(), MambaSpec()], ["2 groups", "FullAttentionSpec", "MambaSpec"]),
        ([FullAttentionSpec(dtype=torch.uint8)], ["torch.uint8", "--kv-cache-dtype auto"]),
        ([FullAttentionSpec(sliding_window=512)], ["sliding_window = 512"]),
        ([FullAttentionSpec(attention_chunk_size=64)], ["attention_chunk_size = 64"]),
        ([FullAttentionSpec(num_heads=3)], ["packed KV pages", "head slots 3"]),
        ([FullAttentionSpec(tokens_per_state=2)], ["packed KV pages"]),
        ([], ["0 groups"]),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(specs: list[Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"does not support|supports models") as caught:
        read(*specs)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_context_parallelism_is_refused_by_name(name: str) -> None:
    config = vllm_config()
    setattr(config.parallel_config, name, 2)
    with pytest.raises(ValueError, match=f"does not support {name} = 2; set it to 1"):
        read_groups(config, kv_cache_config(FullAttentionSpec()))


@pytest.mark.parametrize("version", ["0.20.1", "0.27.9", "0.9.0+cpu"])
def test_an_older_engine_is_refused_naming_both_releases(version: str) -> None:
    with pytest.raises(ValueError, match=rf"vLLM {version.replace('+', '.')} .*install vllm>="):
        compat.check_release(version)


@pytest.mark.parametrize("version", ["0.99.0", "1.0.0", "nightly"])
def test_a_newer_or_unreadable_release_only_warns(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "tierkv.shim"):
        compat.check_release(version)
    assert version in caplog.text


def test_the_running_engine_is_one_we_know(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "tierkv.shim"):
        compat.check_release(compat.vllm_version())
    assert caplog.text == ""


def test_the_failure_policy_becomes_recompute_once() -> None:
    config = vllm_config()
    assert compat.set_recompute_policy(config)
    assert config.kv_transfer_config.kv_load_failure_policy == "recompute"
    assert not compat.set_recompute_policy(config)
