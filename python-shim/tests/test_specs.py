"""Specs: what the shim can carry is described for the sidecar, everything else is refused by name and way out."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.pages.specs import Group, read_groups

from .support.engine import (
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    kv_cache_config,
    make_group,
    vllm_config,
)


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
        "tail": 0,
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
    ("window", "more", "tail"), [(5, 0, 1), (6, 0, 2), (512, 0, 128), (5, 1, 2), (1, 0, 1)]
)
def test_a_sliding_window_needs_the_blocks_it_reaches(window: int, more: int, tail: int) -> None:
    spec = SlidingWindowSpec(sliding_window=window, extra_retained_tokens=more)
    assert read(spec) == [make_group(tail=tail)]


def test_a_recurrent_state_is_an_opaque_page_of_its_own_class() -> None:
    attention, state = read(FullAttentionSpec(), MambaSpec())
    assert (attention, attention.is_state) == (make_group(), False)
    assert (state.index, state.is_state, state.tail, state.page_bytes) == (1, True, 1, (24, 24))
    frame = state.registration()
    assert frame == {
        **dict.fromkeys(["heads", "dim_k", "dim_v", "key_offset", "value_offset"], 0),
        **dict.fromkeys(["head_stride", "token_stride"], 0),
        "group": 1,
        "class": "ssm",
        "layout": "opaque",
        "dtype": "u8",
        "tokens": 4,
        "tail": 1,
        "layers": 2,
        "layer_bytes": 24,
    }


@pytest.mark.parametrize(
    "spec",
    [
        FullAttentionSpec(dtype=torch.uint8),
        FullAttentionSpec(num_heads=3),
        FullAttentionSpec(tokens_per_state=2),
        FullAttentionSpec(kv_quant_mode=1),
        FullAttentionSpec(state_content_bytes=7),
    ],
    ids=["fp8", "packed", "compressed", "scales", "content"],
)
def test_pages_that_are_not_plain_vectors_are_opaque_and_their_format_names_them(spec: Any) -> None:
    (group,) = read(spec)
    assert (group.record_class, group.tail, group.is_opaque) == ("kv", 0, True)
    assert group.page_bytes == (spec.real_page_size_bytes,) * 2
    assert repr(spec) in group.page_format


def test_layers_of_different_size_make_one_page() -> None:
    specs = {"layer.0": FullAttentionSpec(), "layer.1": FullAttentionSpec(head_size_v=5)}
    (group,) = read(SimpleNamespace(kv_cache_specs=specs))
    assert group.page_bytes == (192, 256)
    assert (group.registration()["layers"], group.registration()["layer_bytes"]) == (1, 448)


def test_without_a_cache_or_with_prefix_caching_off_there_is_no_group() -> None:
    assert read() == []
    config = vllm_config()
    config.cache_config.enable_prefix_caching = False
    assert read_groups(config, kv_cache_config(FullAttentionSpec())) == []


def test_another_cache_mode_of_states_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"does not support .*mamba-cache-mode all; .*mode align"):
        read(MambaSpec(mamba_cache_mode="all"))


def test_a_hybrid_model_is_refused_where_vllm_hands_no_states_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "hands_off_states", lambda: False)
    with pytest.raises(ValueError, match=r"does not support handing recurrent .*vllm>=0\.29"):
        read(MambaSpec(), FullAttentionSpec())


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


def test_beside_other_connectors_the_schedulers_own_policy_becomes_recompute() -> None:
    """MultiConnector builds each connector with a configuration of its own, which the scheduler never reads."""

    class Scheduler:
        def __init__(self) -> None:
            self.vllm_config = vllm_config()
            self.is_changed = compat.set_recompute_policy(vllm_config())

    scheduler = Scheduler()
    assert scheduler.is_changed
    assert scheduler.vllm_config.kv_transfer_config.kv_load_failure_policy == "recompute"
