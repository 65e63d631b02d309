"""Owns the proof that codecs on published models are judged rightly, on a model that is made for it."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen2Config, Qwen2ForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "bench" / "fidelity"
PREFIXES, JUDGED, WORDS = (32, 64), 8, 50
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[ModuleType, ModuleType]]:
    """Import the programs, whose modules find one another by their folder."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("published"), importlib.import_module("codecs_tried")
    finally:
        sys.path.remove(str(FOLDER))


def qwen() -> Any:
    """Make a model whose K has a bias larger than what varies, as Qwen 2.5's first layer has, in slow channels."""
    torch.manual_seed(1)
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    rope = {"rope_type": "default", "rope_theta": 1e9}
    config = Qwen2Config(**sizes, initializer_range=0.3, rope_parameters=rope)
    model = Qwen2ForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.k_proj.bias, std=20.0)
        layer.self_attn.k_proj.bias.data[[0, 1, 2, 8, 9, 10]] = 0
    return model


def gemma() -> Any:
    """Make a model with windows shorter than the prefix, and layers without them."""
    torch.manual_seed(1)
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SIZES, sliding_window=24, layer_types=kinds)
    return Gemma3ForCausalLM(config).eval()


def all_ids(count: int) -> list[torch.Tensor]:
    torch.manual_seed(2)
    return [torch.randint(WORDS, (max(PREFIXES) + JUDGED + 1,)) for _ in range(count)]


def options(*codecs: str, **changed: Any) -> argparse.Namespace:
    given = {
        "codec": codecs,
        "block": 16,
        "times": 1,
        "input": "float32",
        "verbose": False,
        "save": False,
    }
    return argparse.Namespace(**(given | changed))


@pytest.fixture
def judged(
    programs: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Prefill two texts of a model and judge codecs: results by codec."""
    published, _ = programs
    monkeypatch.setattr(published, "PREFIXES", PREFIXES)
    monkeypatch.setattr(published, "JUDGED", JUDGED)
    monkeypatch.setattr(published, "STEP", 16)

    def run(model: torch.nn.Module, *codecs: str, **changed: Any) -> dict[str, dict[str, Any]]:
        published.prefill(model, all_ids(2), tmp_path)
        prefix = changed.pop("prefix", max(PREFIXES))
        sums = published.judge(model, tmp_path, prefix, 2, options(*codecs, **changed))
        return {name: total.result() for name, total in sums.items()}

    return run


@pytest.mark.parametrize("make", [qwen, gemma])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_unchanged_k_and_v_cost_nothing_and_kept_logits_are_the_models_own(
    make: Any, prefix: int, judged: Any, programs: Any, tmp_path: Path
) -> None:
    model = make()
    row = judged(model, "exact", prefix=prefix)["exact"]
    assert row["mean KLD"] == pytest.approx(0, abs=1e-12)
    assert (row["top-1"], row["texts"]) == (1.0, 2)
    kept = programs[0].kept(tmp_path, 0, prefix).load()
    with torch.no_grad():
        whole = model(all_ids(2)[0][None, : prefix + JUDGED]).logits[0, prefix:]
    assert torch.allclose(kept["logits"], whole, atol=1e-4)


def test_worse_codecs_cost_more(judged: Any) -> None:
    found = judged(qwen(), "bf16", "int8", "int8-had", "first-mean-had")
    costs = {name: row["mean KLD"] for name, row in found.items()}
    assert 0 < costs["first-mean-had"] < costs["int8-had"]
    noise = "SNR of K that varies, worst layer"
    assert found["first-mean-had"][noise] > found["int8-had"][noise] + 10
    assert all(row["worst token"] >= row["worst text"] >= row["mean KLD"] for row in found.values())


def test_a_codec_may_be_applied_several_times(judged: Any, programs: Any) -> None:
    _, codecs_tried = programs
    grown = codecs_tried.Each(lambda k: k * 1.001, codecs_tried.exact, lambda _: 32)
    codecs_tried.CODECS["grown"] = grown
    noise = "SNR of K that varies, worst layer"
    once, thrice = (judged(qwen(), "grown", times=times)["grown"][noise] for times in (1, 3))
    assert once - thrice == pytest.approx(20 * math.log10(3), abs=0.1)


def test_a_swapped_mean_costs_a_hundred_times_as_much(judged: Any, programs: Any) -> None:
    _, codecs_tried = programs

    class Swapped(codecs_tried.Mean):  # type: ignore[misc, name-defined]
        def __call__(self, k: Any, v: Any, layer: Any) -> Any:
            coded_k, coded_v = super().__call__(k, v, layer)
            blocks = k.unflatten(1, (-1, layer.block))
            mean = blocks.mean(2, keepdim=True)
            return coded_k + (mean.roll(1, 1) - mean).expand_as(blocks).flatten(1, 2), coded_v

    codecs_tried.CODECS["swapped"] = Swapped(is_first_exact=True)
    found = judged(qwen(), "first-mean-had", "swapped")
    assert found["swapped"]["mean KLD"] > 100 * found["first-mean-had"]["mean KLD"]


def test_a_prefill_goes_on_where_it_was_stopped(
    judged: Any, programs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = judged(qwen(), "int8-had")["int8-had"]
    published, _ = programs
    published.kept(tmp_path, 1, max(PREFIXES)).path.unlink()
    counted: list[int] = []
    real = published.logits_after

    def noted(*given: Any) -> Any:
        counted.append(len(given[1]))
        return real(*given)

    monkeypatch.setattr(published, "logits_after", noted)
    published.prefill(qwen(), all_ids(2), tmp_path)
    assert counted == [JUDGED]
    assert judged(qwen(), "int8-had")["int8-had"] == first


def test_the_first_token_is_exact_and_means_are_of_its_block_without_it(programs: Any) -> None:
    _, codecs_tried = programs
    torch.manual_seed(3)
    k, v = torch.randn(2, 32, 16) + 5, torch.randn(2, 32, 16)
    k[:, 0] = 1_000.0
    layer = codecs_tried.Layer(0, 16, torch.ones(32, 16), torch.zeros(32, 16), None)
    coded_k, coded_v = codecs_tried.CODECS["first-mean-had"](k, v, layer)
    assert torch.equal(coded_k[:, 0], k[:, 0])
    assert torch.equal(coded_v[:, 0], v[:, 0])
    assert (coded_k - k).abs().max() < 0.05
    (loose,) = [(codecs_tried.CODECS["mean-had"](k, v, layer)[0] - k)[:, 1:].abs().max()]
    assert loose > 0.5
    with pytest.raises(SystemExit, match="--codec int7: unknown; known: core-ID, exact, bf16"):
        codecs_tried.find_codec("int7")
