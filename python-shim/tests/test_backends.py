"""Pages as each attention backend of the installed vLLM lays them out come back byte for byte, K apart from V."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.pages.orders import plain_order
from tierkv.connectors.vllm.pages.pages import make_pages
from tierkv.connectors.vllm.pages.probe import find_order
from tierkv.connectors.vllm.pages.specs import read_groups
from vllm import _custom_ops
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MLAAttentionSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.gpu.attn_utils import customize_attention_spec

from .support.engine import vllm_config
from .support.layouts import BLOCKS, NAMES, check_round_trip, lay_out

#: Which nobody can have run without being here.
NAMED = ("FLASH_ATTN", "TRITON_ATTN", "FLASHMLA", "ROCM_ATTN", "ROCM_AITER_FA", "CPU_ATTN")
TOKENS = 64
BASE: dict[str, Any] = {"block_size": TOKENS, "dtype": torch.bfloat16}
PLAIN = FullAttentionSpec(**BASE, num_kv_heads=2, head_size=64)
LATENT = MLAAttentionSpec(**BASE, num_kv_heads=1, head_size=576)


def _here() -> dict[str, Any]:
    """Give the backends whose code can be imported without a GPU."""
    found = {}
    for backend in AttentionBackendEnum:
        try:
            found[backend.name] = backend.get_class()
        except Exception:  # noqa: BLE001 - it needs a driver or a package that is not here
            continue
    return found


HERE = _here()


def _pages() -> Iterator[Any]:
    for name, backend in HERE.items():
        for layout in backend.supported_kv_cache_layouts() or tuple(KVCacheLayout):
            yield pytest.param(backend, layout, id=f"{name}-{layout.name}")


def _config(spec: AttentionSpec) -> KVCacheConfig:
    group = KVCacheGroupSpec(layer_names=NAMES, kv_cache_spec=spec)
    return KVCacheConfig(
        num_blocks=BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[group],
        hash_block_size=spec.block_size,
    )


@pytest.mark.parametrize(("backend", "layout"), list(_pages()))
def test_pages_of_a_backend_come_back_byte_for_byte(backend: Any, layout: KVCacheLayout) -> None:
    spec = LATENT if backend.is_mla() else PLAIN
    sizes = backend.get_supported_kernel_block_sizes(spec)
    tokens = max([TOKENS, *(size for size in sizes if isinstance(size, int))])
    _check(customize_attention_spec(backend, replace(spec, block_size=tokens)), layout)


@cache  # many backends keep the same
def _check(spec: AttentionSpec, layout: KVCacheLayout) -> None:
    (group,) = read_groups(vllm_config(), _config(spec))
    raw, tensors = lay_out(spec, layout)
    if not group.is_opaque:
        tensors = {name: view.view(torch.bfloat16) for name, view in tensors.items()}
        _check_k_and_v(group, tensors)
    check_round_trip(group, raw, tensors)


def _check_k_and_v(group: Any, tensors: dict[str, torch.Tensor]) -> None:
    """A layer's K and V stand apart in a slot, wherever the backend has them: vLLM's views end with K, then V."""
    for tensor in tensors.values():
        tensor[2][..., :64], tensor[2][..., 64:] = 1.0, 2.0
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    make_pages(group, tensors, BLOCKS).copy(2, slot, to_slot=True)
    vectors = slot.view(torch.bfloat16).reshape(-1, 2, 64)
    assert (vectors[:, 0] == 1.0).all()
    assert (vectors[:, 1] == 2.0).all()


def test_the_backends_that_users_have_are_among_them() -> None:
    assert set(NAMED) <= set(HERE)


@pytest.mark.parametrize("name", [b.name for b in AttentionBackendEnum if b.name not in HERE])
def test_a_backend_that_cannot_be_imported_names_no_other_layout(name: str) -> None:
    """FlashInfer's NHD and HND, Cutlass-MLA: their code is read as text; all layouts are tried with all specs."""
    place = AttentionBackendEnum[name].value
    if not place:
        pytest.skip("a name for others to register")
    source = _source(place.rpartition(".")[0])
    if source is None:
        pytest.skip("vLLM itself has no such file")
    named = {
        node.attr
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "KVCacheLayout"
    }
    assert named <= {layout.name for layout in KVCacheLayout}
    assert name != "FLASHINFER" or {"LBHNC", "BLHNC"} <= named


def _source(module: str) -> Path | None:
    root = importlib.util.find_spec("vllm")
    assert root is not None and root.origin is not None
    file = Path(root.origin).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    return file if file.exists() else None


def flash(key: Any, value: Any, key_cache: Any, value_cache: Any, slots: Any, *_: Any) -> None:
    """What vLLM's `reshape_and_cache_flash` does on a GPU (csrc/cache_kernels.cu): rows of caches (B, N, H, D)."""
    at = slots // key_cache.shape[1], slots % key_cache.shape[1]
    key_cache[at], value_cache[at] = key, value


#: Backends of GPUs whose own Python can be called here, with the kernels that it calls replaced.
WRITERS = ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "ROCM_AITER_UNIFIED_ATTN", "FLASHINFER")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("layout", KVCacheLayout)
def test_gpu_backends_write_k_and_v_where_the_shape_says(
    name: str, layout: KVCacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own views of a page, with a kernel of ours: on a GPU the worker probes the real one."""
    if name not in HERE:
        pytest.skip("its module needs a package that is not here; its text is looked at below")
    module = sys.modules[HERE[name].__module__]
    for kernel in ("reshape_and_cache_flash", "triton_reshape_and_cache_flash"):
        monkeypatch.setattr(module, kernel, flash, raising=False)
    monkeypatch.setattr(_custom_ops, "reshape_and_cache_flash", flash)
    cache_ops = SimpleNamespace(reshape_and_cache_flash=flash)
    monkeypatch.setattr(torch.ops, "_C_cache_ops", cache_ops, raising=False)
    impl = object.__new__(HERE[name].get_impl_cls())
    named = {"attn_type": "decoder", "head_size": 64, "kv_cache_dtype": "auto"}
    more = {"kv_sharing_target_layer_name": None, "nvfp4_fa2": False, "is_kvcache_nvfp4": False}
    for key, value in {**named, **more, "cache_dtype": "auto"}.items():
        with suppress(AttributeError):  # derived there from another one
            setattr(impl, key, value)
    impl._kv_quant_mode = KVQuantMode.NONE
    with suppress(AttributeError):
        impl._is_per_token_head_quant = False
    layer = SimpleNamespace(impl=impl, _k_scale=None, _v_scale=None)
    (group,) = read_groups(vllm_config(), _config(PLAIN))
    _, tensors = lay_out(PLAIN, layout)
    (view, *_) = (tensor.view(torch.bfloat16) for tensor in tensors.values())
    order = find_order(compat.cache_writer(layer), view, group.dim_k, group.dim_v)
    assert order == plain_order(view, group.dim_k)


def test_flashinfer_writes_as_the_others_do() -> None:
    """Its module cannot be imported here: K and V are halves of the last dimension for the same kernel."""
    source = _source("vllm.v1.attention.backends.flashinfer")
    assert source is not None
    tree = ast.parse(source.read_text())
    (writer,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "do_kv_cache_update"
    )
    text = ast.unparse(writer)
    assert "kv_cache.transpose(1, 2).split(self.head_size, dim=-1)" in text
    assert "torch.ops._C_cache_ops.reshape_and_cache_flash" in text
