"""Owns the proof that seeded checkpoints are reproducible, complete and usable with plain text."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import pytest
from lab.checkpoint import DTYPES, KINDS, Spec, config, main, tensor_shapes, write_checkpoint
from lab.geometries import GEOMETRIES
from safetensors import safe_open
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Spec(hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, vocab=300)


def _bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_same_spec_same_bytes_and_every_field_changes_them(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", SMALL)
    write_checkpoint(tmp_path / "b", SMALL)
    write_checkpoint(tmp_path / "seed", replace(SMALL, seed=2))
    write_checkpoint(tmp_path / "dtype", replace(SMALL, dtype="float16"))
    first = _bytes(tmp_path / "a")
    assert first == _bytes(tmp_path / "b")
    for other in ("seed", "dtype"):
        assert first["model.safetensors"] != _bytes(tmp_path / other)["model.safetensors"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_file_holds_every_tensor_in_its_dtype(tmp_path: Path, kind: str, dtype: str) -> None:
    spec = replace(SMALL, kind=kind, dtype=dtype)
    parameters = write_checkpoint(tmp_path, spec)
    wanted = dict(tensor_shapes(spec))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no dict
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == wanted
    assert {str(tensor.dtype) for tensor in tensors.values()} == {f"torch.{dtype}"}
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters
    assert float(tensors["lm_head.weight"].float().std()) == pytest.approx(0.2, rel=0.02)
    assert float(tensors["model.norm.weight"].float().min()) == 1.0


def test_the_dtypes_hold_the_same_numbers_rounded_to_nearest(tmp_path: Path) -> None:
    def head(dtype: str) -> object:
        write_checkpoint(tmp_path / dtype, replace(SMALL, dtype=dtype))
        with safe_open(tmp_path / dtype / "model.safetensors", "pt") as file:
            return file.get_tensor("lm_head.weight")

    exact, rounded = head("float32"), head("bfloat16")
    assert exact.bfloat16().equal(rounded)  # type: ignore[attr-defined]


#: Bytes of KV a token, and how many layers see the whole prompt, as the models' own configurations give them.
PUBLISHED = {
    "llama-3.1-8b": (131_072, 32),
    "llama-3.1-70b": (327_680, 80),
    "qwen3-30b-a3b-dense": (98_304, 48),
    "gpt-oss-120b-as-gemma3": (73_728, 18),
    "deepseek-v3": (70_272, 61),
    "qwen3.5-9b": (32_768, 8),
    "gemma-3-27b": (507_904, 10),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_named_geometry_keeps_what_the_published_model_keeps(name: str) -> None:
    spec = GEOMETRIES[name]
    made = config(spec)
    kinds = made.get("layer_types", ["full_attention"] * spec.layers)
    keeps = [kind for kind in kinds if kind != "linear_attention"]
    each = 2 * spec.kv_heads * spec.head_dim
    if "kv_lora_rank" in made:
        each = made["kv_lora_rank"] + made["qk_rope_head_dim"]
    assert (2 * each * len(keeps), kinds.count("full_attention")) == PUBLISHED[name]
    # Thin: no more weights than a test can make in a second or two.
    assert sum(prod(shape) for _, shape in tensor_shapes(spec)) < 80_000_000


def test_recurrent_layers_have_heads_of_their_own() -> None:
    spec = GEOMETRIES["qwen3.5-9b"]
    shapes = dict(tensor_shapes(spec))
    assert shapes["model.layers.0.linear_attn.A_log"] == (32,)
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == ((2 * 16 + 32) * 128, 1, 4)
    made = config(spec)
    assert made["linear_num_value_heads"] * made["linear_value_head_dim"] ** 2 == 32 * 128 * 128


def test_one_byte_of_text_is_one_token_and_every_id_decodes(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALL)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "A long text,\n<256> not a mark, \u00e4\u00f6 \u6f22."
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode())
    assert max(ids) < 256
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([256, 299]) == "<256><299>"
    assert tokenizer.get_vocab_size() == SMALL.vocab


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "gpt5"}, "kind is 'gpt5'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide heads"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"layers": 0}, "layers is 0"),
        ({"vocab": 255}, "vocab is 255"),
    ],
)
def test_an_impossible_spec_is_refused_by_name(
    tmp_path: Path, change: dict[str, str | int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        write_checkpoint(tmp_path, replace(SMALL, **change))  # type: ignore[arg-type]


def test_the_command_writes_and_reports_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "m"), "--hidden", "64", "--layers", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(tmp_path / "m")
    assert report["parameters"] > 0
    assert main(["--out", str(tmp_path / "g"), "--geometry", "llama-3.1-8b"]) == 0
    assert json.loads((tmp_path / "g" / "config.json").read_text())["num_hidden_layers"] == 32
    capsys.readouterr()
    assert main(["--out", str(tmp_path / "n"), "--vocab", "10"]) == 1
    assert "vocab is 10" in capsys.readouterr().err
