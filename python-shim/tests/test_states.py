"""Recurrent states in bf16 and INT8: off by no more than the form's bound, in fewer bytes, never among exact ones."""

import math
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.link.settings import Form
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.pages.pages import make_pages
from tierkv.connectors.vllm.pages.specs import Group, read_groups
from tierkv.connectors.vllm.pages.states import StatePart, state_parts
from vllm.v1.kv_cache_interface import MambaSpec

from .support.engine import FullAttentionSpec, kv_cache_config, vllm_config

BLOCKS = 4
#: A gated delta net's: the last inputs of its convolution, then 4 heads of 32 x 64; and a Mamba-2 with a 16-bit state.
SHAPES = ((3, 25), (4, 32, 64))
GDN = {"shapes": SHAPES, "dtypes": (torch.bfloat16, torch.float32)}
CONV_BYTES, STATE_ELEMENTS = 3 * 25 * 2, 4 * 32 * 64


def spec(**changes: Any) -> MambaSpec:
    return MambaSpec(block_size=4, mamba_cache_mode="align", **{**GDN, **changes})


def read(states: Form, **changes: Any) -> Group:
    groups = read_groups(
        vllm_config(), kv_cache_config(FullAttentionSpec(), spec(**changes)), states
    )
    return groups[1]


def delta_net(seed: int) -> torch.Tensor:
    """A state as the gated delta rule leaves it after 300 tokens: decaying sums of outer products."""
    chance = torch.Generator().manual_seed(seed)
    state = torch.zeros(4, 32, 64)
    decay = torch.rand(4, 1, 1, generator=chance) * 0.2 + 0.8
    for _ in range(300):
        key = torch.nn.functional.normalize(torch.randn(4, 1, 64, generator=chance), dim=-1)
        value = torch.randn(4, 32, 1, generator=chance)
        erased = state @ key.transpose(1, 2)
        state = decay * state + 0.5 * (value - decay * erased) @ key
    return state


def page_of(seed: int, state: torch.Tensor | None = None) -> torch.Tensor:
    conv = torch.randn(3, 25, generator=torch.Generator().manual_seed(seed)).bfloat16()
    state = delta_net(seed) if state is None else state
    return torch.cat([conv.view(torch.uint8).flatten(), state.view(torch.uint8).flatten()])


def state_in(page: torch.Tensor) -> torch.Tensor:
    return page[CONV_BYTES:].clone().view(torch.float32).view(4, 32, 64)


def there_and_back(form: Form, wanted: torch.Tensor) -> torch.Tensor:
    """Two layers through a slot, from pages padded as vLLM pads them; gives the first one's page."""
    group = read(form)
    size = CONV_BYTES + 4 * STATE_ELEMENTS
    memory = torch.zeros(2, BLOCKS, size + 50, dtype=torch.int8)
    tensors = {f"layer.{n}": memory[n, :, :size].view(BLOCKS, 1, 1, size) for n in range(2)}
    pages = make_pages(group, tensors, BLOCKS)
    slot = torch.full((group.block_bytes + 8,), 85, dtype=torch.uint8)
    for layer in range(2):
        memory[layer, 2, :size] = wanted.view(torch.int8)
    pages.copy(2, slot, to_slot=True)
    assert slot[group.block_bytes :].eq(85).all()
    memory.zero_()
    pages.copy(2, slot, to_slot=False)
    assert not memory[:, [0, 1, 3]].any()
    assert not memory[:, :, size:].any()
    assert torch.equal(memory[0, 2], memory[1, 2])
    return memory[0, 2, :size].view(torch.uint8)


def snr_db(before: torch.Tensor, after: torch.Tensor) -> float:
    noise = ((before.double() - after.double()) ** 2).sum()
    return 10 * math.log10(float((before.double() ** 2).sum() / noise))


def bound(form: Form, state: torch.Tensor) -> torch.Tensor:
    """How far an element may be off: half a step of its own (bf16), or of its vector's scale (INT8)."""
    if form == "bf16":
        return state.abs() * 2.0**-8
    return state.abs().amax(-1, keepdim=True) / 127 * (0.5 + 2.0**-14)


@pytest.mark.parametrize(("form", "least_db"), [("bf16", 55.0), ("int8", 44.0)])
def test_a_state_is_off_by_no_more_than_the_bound_of_its_form(form: Form, least_db: float) -> None:
    for seed in range(5):
        page = page_of(seed)
        after = there_and_back(form, page)
        assert torch.equal(after[:CONV_BYTES], page[:CONV_BYTES])
        before = state_in(page)
        assert ((before - state_in(after)).abs() <= bound(form, before)).all()
        assert snr_db(before, state_in(after)) > least_db


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_nothing_and_next_to_nothing_come_back(form: Form) -> None:
    state = torch.zeros(4, 32, 64)
    assert not state_in(there_and_back(form, page_of(1, state))).any()
    state[0, 0, 0], state[1, 1, 1], state[2] = 1e-42, -3e38, 5.0
    after = state_in(there_and_back(form, page_of(1, state)))
    assert after.isfinite().all()
    assert after[2].sub(5).abs().max() <= 0.03
    assert after[1, 1, 1] == pytest.approx(-3e38, rel=0.01)


def test_what_is_no_number_stays_none() -> None:
    state = delta_net(1)
    state[0, 3, 5] = torch.nan
    for form in ("bf16", "int8"):
        assert state_in(there_and_back(form, page_of(1, state)))[0, 3].isnan().any()
    state[0, 3, 5] = torch.inf
    assert state_in(there_and_back("int8", page_of(1, state)))[0, 3].isnan().all()


@pytest.mark.parametrize(("form", "element", "scales"), [("bf16", 2, 0), ("int8", 1, 4 * 32 * 4)])
def test_a_lossy_state_takes_fewer_bytes_and_a_namespace_of_its_own(
    form: Form, element: int, scales: int
) -> None:
    exact, lossy = read("raw"), read(form)
    assert exact.block_bytes == 2 * (CONV_BYTES + 4 * STATE_ELEMENTS)
    assert lossy.block_bytes == 2 * (CONV_BYTES + element * STATE_ELEMENTS + scales)
    frame = lossy.registration()
    assert (frame["layers"], frame["layer_bytes"]) == (2, lossy.block_bytes // 2)
    assert lossy.page_bytes == exact.page_bytes
    config = vllm_config()
    config.load_config.load_format = "dummy"
    ours, theirs = (namespace.ingredients(config, [group], 4) for group in (lossy, exact))
    assert ours["states"] == form
    assert "states" not in theirs
    assert ours["groups"] != theirs["groups"]


@pytest.mark.parametrize(
    ("form", "shapes", "dtypes"),
    [
        ("bf16", SHAPES, (torch.bfloat16, torch.bfloat16)),
        ("bf16", ((3, 24),), (torch.float32,)),
        ("int8", ((3, 24),), (torch.float32,)),
        ("int8", SHAPES, (torch.bfloat16, torch.uint8)),
    ],
)
def test_what_has_no_such_state_stays_as_it_is(form: Form, shapes: Any, dtypes: Any) -> None:
    assert read(form, shapes=shapes, dtypes=dtypes) == read("raw", shapes=shapes, dtypes=dtypes)


def test_a_linear_attention_without_a_convolution_has_a_state_too() -> None:
    (part,) = state_parts(spec(shapes=((4, 32, 64),), dtypes=(torch.float32,)), "int8")
    assert part == StatePart("int8", torch.float32, 128, 64)


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_a_float32_convolution_stays_and_each_of_two_states_comes_back(form: Form) -> None:
    shapes, dtypes = ((3, 8), (2, 4, 8), (5, 16)), (torch.float32,) * 3
    group = read(form, shapes=shapes, dtypes=dtypes)
    values = torch.randn(BLOCKS, 24 + 64 + 80, generator=torch.Generator().manual_seed(3))
    memory = values.clone()
    tensors = dict.fromkeys(group.layer_names, memory.view(torch.int8))
    pages = make_pages(group, tensors, BLOCKS)
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    pages.copy(3, slot, to_slot=True)
    memory.zero_()
    pages.copy(3, slot, to_slot=False)
    assert torch.equal(memory[3, :24], values[3, :24])
    for at, width in ((slice(24, 88), 8), (slice(88, 168), 16)):
        before, after = (both[3, at].view(-1, width) for both in (values, memory))
        assert not torch.equal(before, after)
        assert ((before - after).abs() <= bound(form, before)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_state_of_16_bits_takes_int8_too(dtype: torch.dtype) -> None:
    (part,) = state_parts(spec(shapes=((4, 32, 64),), dtypes=(dtype,)), "int8")
    assert (part.page_bytes, part.slot_bytes) == (2 * STATE_ELEMENTS, STATE_ELEMENTS + 128 * 4)
    before = delta_net(7).to(dtype)
    after = part.decode(part.encode(before.view(torch.uint8).flatten())).view(dtype).view(4, 32, 64)
    scale = before.float().abs().amax(-1, keepdim=True) / 127
    assert ((before.float() - after.float()).abs() <= scale * (1 + 2.0**-14)).all()
