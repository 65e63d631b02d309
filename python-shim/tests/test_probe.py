"""Where a backend writes K and V is found by letting it write; slots are the same under every order."""

import dataclasses
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.resolved import CANONICAL, Resolved, agreed
from tierkv.connectors.vllm.engine.worker import WorkerShim
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.connectors.vllm.pages.orders import (
    Order,
    PartOrder,
    UnknownOrderError,
    factors,
    plain_order,
)
from tierkv.connectors.vllm.pages.pages import AttentionPages, OpaquePages, make_pages
from tierkv.connectors.vllm.pages.probe import Prober, find_order, pages_part
from tierkv.connectors.vllm.save.truth import likeness_db
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

from .support.engine import Layers, PlainImpl, make_group, vllm_config

BLOCKS = 4
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
#: Variants of vLLM's C++ writers that this processor runs.
ISAS = ["vec", "vec16", "amx"]
VEC = ("[dim, tokens]", "[tokens, dim]")
TILES = ("[tokens/16, dim/2, 16, 2]", "[dim/16, tokens/2, 16, 2]")


def writer(isa: str, cache_dtype: str = "auto") -> Any:
    """vLLM's own `do_kv_cache_update` of a CPU, with the kernel of our choice."""
    impl = object.__new__(CPUAttentionBackendImpl)
    impl.attn_type, impl.kv_cache_dtype, impl.isa = "decoder", cache_dtype, isa
    layer = SimpleNamespace(impl=impl, isa=isa, _k_scale_float=1.0, _v_scale_float=1.0)
    layer.num_kv_heads, layer.head_size = 2, 64
    return layer


def shaped(group: Any, *, kernel_blocks: int = 1, blocks: int = BLOCKS) -> dict[str, torch.Tensor]:
    """Layers evenly in one allocation, as vLLM has them on a CPU."""
    tokens = group.block_tokens // kernel_blocks
    shape = (len(group.layer_names), blocks * kernel_blocks, group.heads, tokens)
    whole = torch.zeros((*shape, group.dim_k + group.dim_v), dtype=group.dtype)
    return dict(zip(group.layer_names, whole, strict=True))


def wide(dtype: torch.dtype, *, tokens: int = 32, heads: int = 2, layers: int = 2) -> Any:
    return make_group(layers=layers, tokens=tokens, heads=heads, dims=(64, 64), dtype=dtype)


def random_vectors(group: Any, layers: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of all tokens: (layers, tokens, heads, dim)."""
    shape = (layers, blocks * group.block_tokens, group.heads)
    keys, values = (torch.randn(*shape, dim) for dim in (group.dim_k, group.dim_v))
    return keys.to(group.dtype), values.to(group.dtype)


def filled(
    group: Any, write: Callable[..., None], kernel_blocks: int, vectors: Any
) -> dict[str, torch.Tensor]:
    """Pages into which a backend wrote these K and V."""
    tensors = shaped(group, kernel_blocks=kernel_blocks)
    slots = torch.arange(BLOCKS * group.block_tokens)
    for layer, (key, value) in zip(tensors.values(), zip(*vectors, strict=True), strict=True):
        write(key, value, layer, slots)
    return tensors


def in_slot(group: Any, vectors: Any, block: int) -> torch.Tensor:
    """What a slot must hold of a block: (layers, heads, tokens, K then V)."""
    rows = slice(block * group.block_tokens, (block + 1) * group.block_tokens)
    return torch.cat([part[:, rows] for part in vectors], -1).transpose(1, 2)


@pytest.mark.parametrize(
    ("isa", "dtype", "key", "value"),
    [
        *(pytest.param(isa, dtype, *VEC) for isa in ("vec", "vec16") for dtype in DTYPES),
        *(pytest.param("amx", dtype, *TILES) for dtype in DTYPES[:2]),
    ],
)
def test_vllms_own_writers_on_a_cpu_are_explained(
    isa: str, dtype: torch.dtype, key: str, value: str
) -> None:
    (layer, *_) = shaped(wide(dtype)).values()
    order = find_order(compat.cache_writer(writer(isa)), layer, 64, 64)
    assert (str(order.key), str(order.value)) == (key, value)
    assert order.joined() is None
    assert not layer.any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel_blocks", [1, 2])
def test_a_slot_holds_k_and_v_themselves_whatever_the_kernel(
    isa: str, dtype: torch.dtype, kernel_blocks: int
) -> None:
    """Also where a manager block is several kernel blocks, for several heads and layers; and back again."""
    group = wide(dtype, tokens=32 * kernel_blocks, heads=3, layers=3)
    vectors = random_vectors(group, 3, BLOCKS)
    write = compat.cache_writer(writer(isa))
    tensors = filled(group, write, kernel_blocks, vectors)
    order = find_order(write, tensors["layer.0"], 64, 64)
    pages = make_pages(group, tensors, BLOCKS, order)
    assert isinstance(pages, AttentionPages)
    slots = torch.zeros((3, group.block_bytes + 32), dtype=torch.uint8)
    pages.copy_all([(2, 0), (3, 2)], slots, to_slot=True)
    assert torch.equal(pages.vectors(slots[0]), in_slot(group, vectors, 2))
    assert torch.equal(pages.vectors(slots[2]), in_slot(group, vectors, 3))
    assert torch.equal(pages.read(2), in_slot(group, vectors, 2))
    assert not slots[1].any()
    assert not slots[:, group.block_bytes :].any()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor[2 * kernel_blocks :] = 7
    pages.copy_all([(2, 0), (3, 2)], slots, to_slot=False)
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


@pytest.mark.parametrize(("saves", "loads"), [("vec", "amx"), ("amx", "vec"), ("vec", "plain")])
@pytest.mark.parametrize("kernel_blocks", [(1, 1), (2, 1), (1, 2)])
def test_a_block_saved_under_one_order_is_right_under_another(
    saves: str, loads: str, kernel_blocks: tuple[int, int]
) -> None:
    """The pages of the second engine are what its own writer would have made of the same K and V."""
    group = wide(torch.bfloat16, tokens=64)
    vectors = random_vectors(group, 2, BLOCKS)
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    wanted = []
    for name, cut, to_slot in ((saves, kernel_blocks[0], True), (loads, kernel_blocks[1], False)):
        layer = SimpleNamespace(impl=PlainImpl()) if name == "plain" else writer(name)
        write = compat.cache_writer(layer)
        tensors = filled(group, write, cut, vectors)
        wanted = [layer[2 * cut : 3 * cut].clone() for layer in tensors.values()]
        if not to_slot:
            for layer in tensors.values():
                layer.zero_()
        order = find_order(write, tensors["layer.0"], 64, 64)
        make_pages(group, tensors, BLOCKS, order).copy(2, slot, to_slot=to_slot)
    restored = [layer[2 * cut : 3 * cut] for layer in tensors.values()]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(restored, wanted, strict=True))


def test_a_wrong_axis_is_seen() -> None:
    """What the shape says is not what a CPU's kernel does: blocks of one host would be wrong at another."""
    group = wide(torch.bfloat16)
    vectors = random_vectors(group, 2, BLOCKS)
    tensors = filled(group, compat.cache_writer(writer("vec")), 1, vectors)
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    by_shape = make_pages(group, tensors, BLOCKS)
    by_shape.copy(2, slot, to_slot=True)
    assert not torch.equal(by_shape.vectors(slot), in_slot(group, vectors, 2))  # type: ignore[attr-defined]
    proven = prober(writer("vec")).look(group, tensors)
    pages = make_pages(group, tensors, BLOCKS, proven.order)
    pages.copy(2, slot, to_slot=True)
    assert torch.equal(pages.vectors(slot), in_slot(group, vectors, 2))  # type: ignore[attr-defined]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel_blocks", [1, 2])
def test_rows_of_many_blocks_are_slots_under_every_order(isa: str, kernel_blocks: int) -> None:
    """As a GPU copies them, several at once; one alone passes through a row, too."""
    group = wide(torch.bfloat16, tokens=64)
    vectors = random_vectors(group, 2, BLOCKS)
    write = compat.cache_writer(writer(isa))
    tensors = filled(group, write, kernel_blocks, vectors)
    pages = make_pages(group, tensors, BLOCKS, find_order(write, tensors["layer.0"], 64, 64))
    assert pages.rows is not None
    assert pages.rows.row_bytes == group.block_bytes
    rows = pages.rows.gather(torch.tensor([3, 1]))
    for row, block in zip(rows, (3, 1), strict=True):
        assert torch.equal(pages.vectors(row), in_slot(group, vectors, block))  # type: ignore[attr-defined]
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor[kernel_blocks : 2 * kernel_blocks] = 7
        tensor[3 * kernel_blocks :] = 7
    pages.rows.scatter(torch.tensor([1, 3]), rows.flip(0))
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)
    pages._through_rows = True  # type: ignore[attr-defined]
    slot = torch.zeros(group.block_bytes + 8, dtype=torch.uint8)
    pages.copy(2, slot, to_slot=True)
    assert torch.equal(pages.vectors(slot), in_slot(group, vectors, 2))  # type: ignore[attr-defined]
    for tensor in tensors.values():
        tensor[2 * kernel_blocks : 3 * kernel_blocks] = 7
    pages.copy(2, slot, to_slot=False)
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


def test_an_order_by_shape_takes_the_short_way() -> None:
    """Pages that a GPU's FlashAttention writes are copied as before: one view, one gather."""
    group = wide(torch.bfloat16)
    tensors = shaped(group)
    found = prober(SimpleNamespace(impl=PlainImpl())).look(group, tensors)
    assert found.order == plain_order(tensors["layer.0"], 64)
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    pages = make_pages(group, tensors, BLOCKS, found.order)
    assert len(pages.pairs(1, slot)) == 1
    assert type(pages.rows).__name__ == "Rows"


def prober(layer: Any, **changes: Any) -> Prober:
    config = vllm_config()
    layers = Layers(None)
    layers._layer = layer
    config.compilation_config.static_forward_context = layers
    config.model_config.dtype = changes.get("dtype", torch.bfloat16)
    return Prober(config, BLOCKS)


class Odd:
    """Writers that no factors describe, or that fail."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        if self._fault == "raises":
            raise RuntimeError("an unsupported configuration")
        if self._fault == "nothing":
            return
        if self._fault == "scaled":
            key = key * 2
        if self._fault == "rounded":
            value = value.to(torch.float8_e4m3fn).to(value.dtype)
        if self._fault == "half":
            slots = slots[::2]
            key, value = key[::2], value[::2]
        if self._fault == "shuffled":
            key = key[torch.randperm(len(key), generator=torch.Generator().manual_seed(1))]
        if self._fault == "other block":
            slots = slots - cache.shape[2]
        if self._fault == "heads twisted":
            key = torch.cat((key[:, :1], key[:, 1:].roll(1, 0)), 1)
        PlainImpl().do_kv_cache_update(layer, key, value, cache, slots)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raises", "RuntimeError: an unsupported configuration"),
        ("nothing", "does not write a block's own page"),
        ("scaled", "keep each element"),
        ("rounded", "keep each element"),
        ("half", "does not write a block's own page"),
        ("shuffled", "no regular order"),
        ("other block", "does not write a block's own page"),
        ("heads twisted", "do not lie independently"),
    ],
)
def test_what_cannot_be_explained_is_opaque_and_named(fault: str, words: str) -> None:
    group, layer = wide(torch.bfloat16), SimpleNamespace(impl=Odd(fault), isa="odd")
    tensors = shaped(group)
    found = prober(layer).look(group, tensors)
    assert found.order is None
    assert words in found.text
    assert found.group.is_opaque
    assert found.group.block_bytes == group.block_bytes
    assert found.group.registration()["layout"] == "opaque"
    for named in (f"{__name__}.Odd odd", compat.processor(torch.device("cpu")), "(2, 32, 128)"):
        assert named in found.name
    assert isinstance(make_pages(found.group, tensors, BLOCKS, found.order), OpaquePages)
    assert pages_part([found]) == f"0: {found.name}"


@pytest.mark.parametrize("layer", [None, SimpleNamespace(), SimpleNamespace(impl=object())])
def test_a_layer_without_a_writer_is_opaque(layer: Any) -> None:
    group = wide(torch.bfloat16)
    found = prober(layer).look(group, shaped(group))
    assert found.order is None
    assert "no writer of K and V" in found.text


def test_a_writer_inside_the_forward_is_opaque() -> None:
    backend = SimpleNamespace(forward_includes_kv_cache_update=True)
    layer = SimpleNamespace(impl=PlainImpl(), attn_backend=backend)
    group = wide(torch.bfloat16)
    assert prober(layer).look(group, shaped(group)).order is None


def test_a_writer_that_changed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's writer with K's tokens turned round: named as another kernel's pages, never as K and V."""
    real = ops.cpu_attn_reshape_and_cache

    def changed(key: Any, value: Any, key_cache: Any, *rest: Any, **named: Any) -> None:
        real(key, value, key_cache, *rest, **named)
        key_cache.copy_(key_cache.flip(-1))

    group = wide(torch.bfloat16)
    before = prober(writer("vec")).look(group, shaped(group))
    monkeypatch.setattr(ops, "cpu_attn_reshape_and_cache", changed)
    after = prober(writer("vec")).look(group, shaped(group))
    assert (before.name, str(before.order)) == (CANONICAL, "K [dim, tokens], V [tokens, dim]")
    assert after.name != CANONICAL or after.order != before.order


def test_layers_that_differ_make_the_group_opaque() -> None:
    group = wide(torch.bfloat16)
    mixed = prober(None)
    mixed._layers = {"layer.0": writer("vec"), "layer.1": writer("amx")}
    found = mixed.look(group, shaped(group))
    assert found.order is None
    assert "its layers differ" in found.text


def fp8(group: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    size = group.layer_bytes // 2
    opaque = dataclasses.replace(
        group,
        heads=0,
        dim_k=0,
        dim_v=0,
        dtype=torch.uint8,
        page_bytes=(size,) * 2,
        page_format="fp8",
    )
    tensors = shaped(dataclasses.replace(group, dtype=torch.uint8))
    return opaque, tensors


def test_fp8_pages_of_unlike_kernels_have_unlike_names(monkeypatch: pytest.MonkeyPatch) -> None:
    opaque, tensors = fp8(wide(torch.bfloat16))
    found = {
        isa: prober(writer(isa, "fp8_e4m3")).look(opaque, tensors).name for isa in ("vec", "amx")
    }
    assert "CPUAttentionBackendImpl vec fp8_e4m3" in found["vec"]
    assert found["vec"] != found["amx"]
    # The bytes themselves are in the name, whatever the kernel is called.
    seals = {name.rpartition(" ")[2] for name in found.values()}
    assert len(seals) == 2
    assert all(len(seal) == 16 for seal in seals)
    again = prober(writer("vec", "fp8_e4m3")).look(opaque, tensors).name
    assert again == found["vec"]
    real = ops.cpu_attn_reshape_and_cache

    def changed(key: Any, value: Any, *rest: Any, **named: Any) -> None:
        real(key.flip(-1), value, *rest, **named)

    monkeypatch.setattr(ops, "cpu_attn_reshape_and_cache", changed)
    assert prober(writer("vec", "fp8_e4m3")).look(opaque, tensors).name != found["vec"]


def test_opaque_pages_are_named_by_the_kind_of_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    opaque, tensors = fp8(wide(torch.bfloat16))

    def name() -> str:
        return prober(writer("vec", "fp8_e4m3")).look(opaque, tensors).name

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    before = name()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    with_tiles = name()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert len({before, with_tiles, name()}) == 3


def test_canonical_pages_have_one_name_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    group = wide(torch.bfloat16)
    names = {pages_part([prober(writer(isa)).look(group, shaped(group))]) for isa in ISAS}
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    names.add(pages_part([prober(writer("amx")).look(group, shaped(group))]))
    assert names == {CANONICAL}


def test_one_kind_of_kernel_is_probed_once_and_nothing_of_the_engine_is_touched() -> None:
    calls = []

    class Counted(PlainImpl):
        def do_kv_cache_update(self, *given: Any) -> None:
            calls.append(given[3].data_ptr())
            super().do_kv_cache_update(*given)

    group = wide(torch.bfloat16, layers=40)
    tensors = shaped(group)
    looks = prober(SimpleNamespace(impl=Counted()))
    looks.look(group, tensors)
    many = len(calls)
    assert 0 < many <= 5
    looks.look(dataclasses.replace(group, index=1), tensors)
    assert len(calls) == many
    whole = tensors["layer.0"].untyped_storage()
    assert not any(whole.data_ptr() <= at < whole.data_ptr() + len(whole) for at in calls)


def test_a_page_that_needs_too_much_memory_is_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    group = wide(torch.bfloat16)
    bytes_of_two = 2 * group.layer_bytes
    monkeypatch.setattr(limits, "PROBE_BYTES_MAX", bytes_of_two)
    assert prober(writer("vec")).look(group, shaped(group)).order is not None
    monkeypatch.setattr(limits, "PROBE_BYTES_MAX", bytes_of_two - 1)
    assert "two blocks span" in prober(writer("vec")).look(group, shaped(group)).text


def test_the_comparison_of_restored_with_computed_follows_the_order() -> None:
    group = wide(torch.bfloat16)
    vectors = random_vectors(group, 2, BLOCKS)
    write = compat.cache_writer(writer("amx"))
    tensors = filled(group, write, 1, vectors)
    pages = make_pages(group, tensors, BLOCKS, find_order(write, tensors["layer.0"], 64, 64))
    slot = torch.zeros(group.block_bytes + 8, dtype=torch.uint8)
    pages.copy(2, slot, to_slot=True)
    assert likeness_db(pages, 2, slot) == limits.TRUTH_DB_MAX
    assert likeness_db(pages, 3, slot) < 5


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([0], ((1, 1),)),
        ([0, 1, 2, 3], ((4, 1),)),
        ([0, 8, 1, 9, 2, 10, 3, 11], ((4, 1), (2, 8))),
        ([0, 1, 16, 17, 4, 5, 20, 21], ((2, 4), (2, 16), (2, 1))),
    ],
)
def test_factors_of_places(places: list[int], found: Any) -> None:
    assert factors(places) == found


@pytest.mark.parametrize("places", [[0, 1, 3], [0, 1, 2, 4], [0, 1, 16, 18], [0, 1, 2, 5, 6]])
def test_places_without_factors(places: list[int]) -> None:
    with pytest.raises(UnknownOrderError):
        factors(places)


def test_an_order_reads_like_a_shape() -> None:
    key = PartOrder(0, 64, ((2, 32), (4, 2)), ((4, 8), (2, 1)))
    value = PartOrder(64, 64, ((8, 8),), ((8, 1),))
    assert str(Order(key, value)) == "K [tokens/4, dim/2, 4, 2], V [tokens, dim]"
    assert str(plain_order(torch.zeros(2, 2, 4, 6), 3)) == "[tokens, K then V]"


def test_a_list_of_tensors_is_refused_by_name_as_before() -> None:
    opaque, tensors = fp8(wide(torch.bfloat16))
    lists: Any = {name: [tensor] for name, tensor in tensors.items()}
    found = prober(writer("vec")).look(opaque, lists)
    assert "list" in found.name
    with pytest.raises(ValueError, match=r"layer layer\.0: expected one KV tensor, got list"):
        make_pages(found.group, lists, BLOCKS, found.order)


def test_a_worker_tells_the_order_of_its_pages_in_its_introduction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ranks whose pages lie in unlike opaque orders get no name; a canonical order is the same everywhere."""

    def introduced(impl: Any) -> tuple[WorkerShim, str]:
        config = vllm_config()
        config.compilation_config.static_forward_context = Layers(impl)
        group = wide(torch.bfloat16)
        shim = WorkerShim(config, Settings("/nowhere", "test", autostart=False), [group], BLOCKS)
        shim.register_kv_caches(shaped(group))
        try:
            return shim, shim.introduce().resolved.parts["pages"]
        finally:
            shim.shutdown()

    caplog.set_level(logging.DEBUG, "tierkv.shim")
    shim, part = introduced(PlainImpl())
    assert part == CANONICAL
    assert shim.counters.get("pages_canonical") == 1
    assert shim.counters.get("page_probe_us") > 0
    assert any(" in pages was found in " in record.getMessage() for record in caplog.records)
    assert [one.message for one in caplog.records if one.levelno > logging.DEBUG] == []
    shim, part = introduced(Odd("shuffled"))
    assert "Odd" in part
    assert (shim.counters.get("pages_canonical"), shim.counters.get("pages_opaque")) == (0, 1)
    assert shim._groups[0].registration()["layout"] == "opaque"
    assert any("no regular order" in record.getMessage() for record in caplog.records)
    parts = {"model_config": "the same"}
    ranks = {0: Resolved({**parts, "pages": CANONICAL}), 1: Resolved({**parts, "pages": part})}
    assert agreed(ranks, 2).refused == "ranks 0 and 1 run with different pages"
