"""vLLM's own spec classes: each is carried byte for byte, left alone, or refused; pages laid out by vLLM's own code."""

import inspect
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.pages.pages import make_pages
from tierkv.connectors.vllm.pages.specs import Group, read_groups
from vllm.v1 import kv_cache_interface as vllm_specs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    HiSparseHotSpec,
    HiSparseResidentSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from .support.engine import vllm_config
from .support.layouts import BLOCKS, NAMES, check_round_trip, lay_out

TOKENS = 16
BASE: dict[str, Any] = {
    "block_size": TOKENS,
    "num_kv_heads": 2,
    "head_size": 64,
    "dtype": torch.bfloat16,
}
LATENT = {**BASE, "num_kv_heads": 1, "head_size": 576}
FULL = FullAttentionSpec(**BASE)
#: Two states of a gated delta net, padded to the attention page as vLLM does.
STATE = MambaSpec(
    block_size=TOKENS,
    shapes=((3, 24), (4, 8, 8)),
    dtypes=(torch.bfloat16, torch.float32),
    page_size_padded=2048,
    mamba_cache_mode="align",
)


@dataclass(frozen=True, kw_only=True)
class NobodysSpec(KVCacheSpec):  # type: ignore[misc]
    """A kind that neither vLLM nor we know: all it says is how large a page is."""

    page: int = 640

    @property
    def page_size_bytes(self) -> int:
        return self.page


@dataclass(frozen=True, kw_only=True)
class NobodysStateSpec(NobodysSpec):
    """A state of the whole sequence."""

    @property
    def tokens_per_state(self) -> int | Fraction:
        return -1


@dataclass(frozen=True, kw_only=True)
class DerivedSpec(FullAttentionSpec):  # type: ignore[misc]
    """A plug-in's own attention, which may keep anything in its pages."""


def config_of(*specs: KVCacheSpec, **changes: Any) -> KVCacheConfig:
    groups = [KVCacheGroupSpec(layer_names=NAMES, kv_cache_spec=spec, **changes) for spec in specs]
    return KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups, hash_block_size=TOKENS
    )


def read(*specs: KVCacheSpec, **changes: Any) -> list[Group]:
    return read_groups(vllm_config(), config_of(*specs, **changes))


#: name -> spec, record class, tail.
OPAQUE: dict[str, tuple[KVCacheSpec, str, int]] = {
    "fp8": (
        replace(FULL, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR),
        "kv",
        0,
    ),
    "int8, scales inside": (
        replace(
            FULL,
            dtype=torch.int8,
            kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
            state_content_bytes=2 * 64 + 8,
        ),
        "kv",
        0,
    ),
    "padded and packed": (
        replace(
            FULL,
            dtype=torch.uint8,
            num_head_slots=1,
            state_content_bytes=300,
            page_size_padded=8192,
        ),
        "kv",
        0,
    ),
    "latent": (MLAAttentionSpec(**LATENT), "kv", 0),
    "latent in fp8, padded": (
        MLAAttentionSpec(**LATENT | {"dtype": torch.uint8, "head_size": 584}, alignment=1152),
        "kv",
        0,
    ),
    "latent in a window": (
        SlidingWindowMLASpec(**LATENT, sliding_window=40, model_version="deepseek_v4"),
        "kv",
        3,
    ),
    "hidden states": (HiddenStateCacheSpec(**LATENT), "kv", 0),
    "sinks": (SinkFullAttentionSpec(**BASE, sink_len=16), "kv", 0),
    "reference window": (RSWASpec(**BASE, rswa_window=32), "kv", 0),
    "several states a token": (replace(FULL, tokens_per_state=Fraction(1, 4)), "kv", 0),
    "one state for four tokens": (replace(FULL, tokens_per_state=4), "kv", 0),
    "fp8 window": (SlidingWindowSpec(**BASE | {"dtype": torch.uint8}, sliding_window=17), "kv", 1),
    "derived": (DerivedSpec(**BASE), "kv", 0),
    "recurrent": (STATE, "ssm", 1),
}


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.parametrize("layout", list(KVCacheLayout), ids=lambda layout: layout.name)
def test_pages_come_back_byte_for_byte_whatever_their_layout(
    name: str, layout: KVCacheLayout
) -> None:
    spec, record_class, tail = OPAQUE[name]
    (group,) = read(spec)
    assert (group.record_class, group.tail, group.is_opaque) == (record_class, tail, True)
    assert type(spec).__name__ in group.page_format
    raw, tensors = lay_out(spec, layout)
    assert group.page_bytes == tuple(page[1].numel() * page.itemsize for page in tensors.values())
    check_round_trip(group, raw, tensors)


@pytest.mark.parametrize(
    ("spec", "tail"),
    [
        (FULL, 0),
        (replace(FULL, head_size_v=32), 0),
        (replace(FULL, attention_chunk_size=64), 0),
        (replace(FULL, sliding_window=512), 0),
        (SlidingWindowSpec(**BASE, sliding_window=80, extra_retained_tokens=2), 6),
        (ChunkedLocalAttentionSpec(**BASE, attention_chunk_size=72), 5),
    ],
    ids=[
        "full",
        "V of its own width",
        "chunks kept whole",
        "window kept whole",
        "window",
        "chunks",
    ],
)
def test_plain_vectors_are_canonical(spec: Any, tail: int) -> None:
    (group,) = read(spec)
    assert (group.is_opaque, group.tail, group.dim_v) == (False, tail, spec.head_size_v)
    _, tensors = lay_out(spec, KVCacheLayout.LBHNC)
    views = {name: view.view(torch.bfloat16) for name, view in tensors.items()}
    assert make_pages(group, views, BLOCKS).group is group


def test_an_unknown_kind_is_kept_as_it_is_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "tierkv.shim"):
        (group,) = read(NobodysSpec(block_size=TOKENS))
    assert (group.page_bytes, group.tail, group.may_skip) == ((640, 640), 0, True)
    assert f"{__name__}.NobodysSpec is unknown; its pages are kept as they are" in caplog.text
    raw = torch.randint(-128, 128, (BLOCKS * 640,), dtype=torch.int8)
    pages = make_pages(group, dict.fromkeys(NAMES, raw), BLOCKS)
    slot = torch.zeros(1280, dtype=torch.uint8)
    pages.copy(3, slot, to_slot=True)
    assert torch.equal(slot.view(torch.int8), raw[3 * 640 :].repeat(2))


def namespace_of(spec: KVCacheSpec) -> str:
    groups = read(spec)
    config = vllm_config()
    config.load_config.load_format = "dummy"
    return namespace.ingredients(config, groups, TOKENS)["groups"]


def test_class_and_every_parameter_are_part_of_the_namespace() -> None:
    fp8: Any = OPAQUE["fp8"][0]
    alike = [
        fp8,
        replace(fp8, kv_quant_mode=KVQuantMode.FP8_PER_TOKEN_HEAD),
        replace(fp8, dtype=torch.int8),
        replace(fp8, page_size_padded=8192),
        replace(fp8, num_head_slots=2),
        DerivedSpec(**{**BASE, "dtype": torch.uint8, "kv_quant_mode": KVQuantMode.FP8_PER_TENSOR}),
        NobodysSpec(block_size=TOKENS),
        NobodysSpec(block_size=TOKENS, page=641),
    ]
    assert len({namespace_of(spec) for spec in alike}) == len(alike)
    assert namespace_of(fp8) == namespace_of(replace(fp8))


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"kv_cache_spec": CrossAttentionSpec(**BASE)}, "belongs to an encoder's output"),
        ({"kv_cache_spec": FULL, "host_resident": True}, "lives in host memory"),
        ({"kv_cache_spec": replace(FULL, non_causal=True)}, "attends to later tokens"),
        (
            {
                "kv_cache_spec": UniformTypeKVCacheSpecs(
                    block_size=TOKENS,
                    kv_cache_specs={name: CrossAttentionSpec(**BASE) for name in NAMES},
                )
            },
            "belongs to an encoder's output",
        ),
    ],
    ids=["cross-attention", "host memory", "both ways", "cross-attention, wrapped"],
)
def test_an_engine_whose_prefixes_cannot_be_restored_runs_untouched(
    group: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(FULL)
    config.kv_cache_groups.append(KVCacheGroupSpec(layer_names=NAMES, **group))
    with caplog.at_level("WARNING", "tierkv.shim"):
        assert read_groups(vllm_config(), config) == []
    assert f"KV-cache group 1 ({type(group['kv_cache_spec']).__name__}) {words}" in caplog.text


@pytest.mark.parametrize(
    "spec",
    [
        EncoderOnlyAttentionSpec(**BASE),
        CircularBufferSpec(**BASE),
        HiSparseHotSpec(block_size=TOKENS, page_size=64, blocks_per_request=1),
        HiSparseResidentSpec(block_size=TOKENS, page_size=64),
        SlidingWindowMLASpec(**LATENT, sliding_window=40, bounded_replay=True),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_what_holds_no_prefix_is_left_alone_by_name(
    spec: KVCacheSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tierkv.shim"):
        (group,) = read(spec, FULL)
    assert group.index == 1
    assert f"KV-cache group 0 ({type(spec).__name__}) is left alone" in caplog.text


def test_a_state_that_nobody_hands_over_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"does not support .*NobodysStateSpec.*MambaSpec only"):
        read(NobodysStateSpec(block_size=TOKENS), FULL)


def test_every_kind_of_this_release_is_in_one_of_the_tests_above() -> None:
    kinds = {
        name
        for name, kind in inspect.getmembers(vllm_specs, inspect.isclass)
        if issubclass(kind, KVCacheSpec)
    }
    kinds -= {"KVCacheSpec", "AttentionSpec", "UniformTypeKVCacheSpecs"}
    tried = {type(spec).__name__ for spec, *_ in OPAQUE.values()}
    tried |= {"FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"}
    tried |= {"CrossAttentionSpec", "EncoderOnlyAttentionSpec", "CircularBufferSpec"}
    assert kinds <= tried | {"HiSparseHotSpec", "HiSparseResidentSpec"}
