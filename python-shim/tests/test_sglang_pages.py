"""Pages of SGLang's host pools, in shapes as its own code makes them (test/engine/test_sglang_pools.py: real pools)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from tierkv.sglang.pages import HostPages, RefusedPoolError

LAYERS, PAGES, TOKENS, HEADS, DIM = 3, 4, 8, 2, 16
SIZE = PAGES * TOKENS
SHAPES = {
    "layer_first": (2, LAYERS, SIZE, HEADS, DIM),
    "page_first": (2, SIZE, LAYERS, HEADS, DIM),
    "page_first_direct": (2, PAGES, LAYERS, TOKENS, HEADS, DIM),
    "page_head": (2, PAGES, HEADS, TOKENS, LAYERS, DIM),
}
#: Place of (K or V, layer, token of the pool, head) in each layout.
PLACE: Final[dict[str, Callable[[int, int, int, int], tuple[int, ...]]]] = {
    "layer_first": lambda kv, layer, token, head: (kv, layer, token, head),
    "page_first": lambda kv, layer, token, head: (kv, token, layer, head),
    "page_first_direct": lambda kv, layer, token, head: (
        kv,
        token // TOKENS,
        layer,
        token % TOKENS,
        head,
    ),
    "page_head": lambda kv, layer, token, head: (
        kv,
        token // TOKENS,
        head,
        token % TOKENS,
        layer,
    ),
}


class MHATokenToKVPoolHost(SimpleNamespace):
    """Carries the name by which pools are told apart."""


class MHATokenToKOnlyPoolHost(SimpleNamespace):
    """A pool that is not carried."""


def make_pool(shape: str, **changed: Any) -> MHATokenToKVPoolHost:
    fields: dict[str, Any] = {
        "layout": shape,
        "kv_buffer": torch.zeros(SHAPES[shape], dtype=torch.bfloat16),
        "dtype": torch.bfloat16,
        "layer_num": LAYERS,
        "page_size": TOKENS,
        "head_num": HEADS,
        "head_dim": DIM,
        "v_head_dim": DIM,
        "dcp_size": 1,
        "start_layer": 0,
        "storage_format_tag": None,
    }
    return MHATokenToKVPoolHost(**{**fields, **changed})


@pytest.mark.parametrize("layout", SHAPES)
def test_a_slot_holds_each_vector_where_register_says(layout: str) -> None:
    pool = make_pool(layout)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape).to(torch.bfloat16))
    pages = HostPages(pool)
    place = pages.geometry.registration()
    slot = bytearray(pages.geometry.page_bytes)
    pages.save(2 * TOKENS, memoryview(slot))
    for layer in range(LAYERS):
        for head in range(HEADS):
            for token in range(TOKENS):
                start = layer * place["layer_bytes"] + head * place["head_stride"]
                start += token * place["token_stride"]
                for kv, offset in enumerate((place["key_offset"], place["value_offset"])):
                    at = PLACE[layout](kv, layer, 2 * TOKENS + token, head)
                    vector = pool.kv_buffer[at].view(torch.uint8).numpy().tobytes()
                    assert bytes(slot[start + offset :][: len(vector)]) == vector
    # Loaded into another page, the page is the same, and its neighbours are as they were.
    before = pool.kv_buffer.clone()
    pages.load(TOKENS, memoryview(slot))
    again = bytearray(len(slot))
    pages.save(TOKENS, memoryview(again))
    assert again == slot
    pages.load(TOKENS, memoryview(_saved(make_like(pool, before), TOKENS)))
    assert torch.equal(pool.kv_buffer, before)


def make_like(pool: MHATokenToKVPoolHost, buffer: torch.Tensor) -> MHATokenToKVPoolHost:
    return make_pool(pool.layout, kv_buffer=buffer)


def _saved(pool: MHATokenToKVPoolHost, index: int) -> bytearray:
    pages = HostPages(pool)
    slot = bytearray(pages.geometry.page_bytes)
    pages.save(index, memoryview(slot))
    return slot


def test_layouts_of_one_shape_have_one_name_and_other_shapes_another() -> None:
    names = {HostPages(make_pool(layout)).geometry.digest() for layout in SHAPES}
    assert len(names) == 1
    fp8 = torch.zeros(SHAPES["page_first"], dtype=torch.float8_e4m3fn)
    opaque = HostPages(make_pool("page_first", kv_buffer=fp8, dtype=torch.float8_e4m3fn)).geometry
    assert opaque.registration()["layout"] == "opaque"
    later = HostPages(make_pool("page_first", start_layer=LAYERS)).geometry
    tagged = HostPages(make_pool("page_first", storage_format_tag="packed")).geometry
    assert len({*names, opaque.digest(), later.digest(), tagged.digest()}) == 4


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"layout": "page_unified"}, "--hicache-mem-layout page_unified"),
        ({"dcp_size": 2}, "--dcp-size 2"),
        ({"v_head_dim": DIM * 2}, "heads of 16 for K and 32 for V"),
        ({"kv_buffer": None}, "no memory of its own"),
        ({"head_num": HEADS * 2}, "has the shape"),
        (
            {
                "_buffer_infos": [
                    SimpleNamespace(scales=SimpleNamespace(layout=SimpleNamespace(value="token")))
                ]
            },
            "scales beside the pages (token)",
        ),
    ],
)
def test_a_pool_that_is_not_carried_is_refused_by_name(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(RefusedPoolError) as refused:
        HostPages(make_pool("page_first", **changed))
    assert what in str(refused.value)


def test_a_pool_of_another_class_is_refused_by_its_name() -> None:
    with pytest.raises(RefusedPoolError, match="MHATokenToKOnlyPoolHost"):
        HostPages(MHATokenToKOnlyPoolHost(**vars(make_pool("page_first"))))
