"""The namespace: same engine, same digest; whatever changes a block's meaning changes the digest."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import compat, limits, namespace, weights
from tierkv.connectors.vllm.specs import Group

from .support.engine import make_group, vllm_config

ROOT = bytes(range(32))


def make_model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    return folder


def digest(
    config: Any,
    groups: list[Group] | None = None,
    *,
    root: bytes = ROOT,
    fidelity: int = 0,
    hash_tokens: int = 4,
) -> bytes:
    parts = namespace.ingredients(config, groups or [make_group()], hash_tokens)
    return namespace.finish(parts, root, fidelity).digest


def put(*path: str, value: Any) -> Callable[[Any], None]:
    """Gives a change of one attribute of the configuration."""

    def change(config: Any) -> None:
        for name in path[:-1]:
            config = getattr(config, name)
        setattr(config, path[-1], value)

    return change


def hf(key: str, value: Any) -> Callable[[Any], None]:
    return lambda config: config.model_config.hf_config.hf.update({key: value})


CHANGES: dict[str, Callable[[Any], None]] = {
    "hf config": hf("rope_theta", 5e5),
    "dtype": put("model_config", "dtype", value=torch.bfloat16),
    "quantization": put("model_config", "quantization", value="awq"),
    "load format": put("load_config", "load_format", value="dummy"),
    "cache dtype": put("cache_config", "cache_dtype", value="fp8"),
    "hash": put("cache_config", "prefix_caching_hash_algo", value="sha256_cbor"),
    "tensor parallel": put("parallel_config", "tensor_parallel_size", value=2),
    "pipeline parallel": put("parallel_config", "pipeline_parallel_size", value=2),
    "speculation": put(
        "speculative_config",
        value=SimpleNamespace(method="eagle", model="draft", num_speculative_tokens=2),
    ),
    "adapters": put("lora_config", value=SimpleNamespace()),
}


def test_two_starts_of_the_same_engine_agree(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    one = digest(vllm_config(model))
    assert len(one) == 32
    assert digest(vllm_config(model)) == one


def test_what_does_not_change_a_block_does_not_change_the_digest(tmp_path: Path) -> None:
    one, moved = make_model(tmp_path / "one"), make_model(tmp_path / "two")
    (moved / "tokenizer.json").write_text("{}")
    config = vllm_config(moved)
    config.model_config.hf_config.hf["transformers_version"] = "9.9"
    config.model_config.seed = 7
    config.kv_transfer_config.engine_id = "engine-2"
    config.model_config.max_model_len = 64
    assert digest(config) == digest(vllm_config(one))


@pytest.mark.parametrize("name", CHANGES)
def test_f25_each_ingredient_counts(name: str, tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    changed = vllm_config(model)
    CHANGES[name](changed)
    assert digest(changed) != digest(vllm_config(model))


def test_all_changes_differ_from_each_other(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    digests = {digest(vllm_config(model))}
    for change in CHANGES.values():
        config = vllm_config(model)
        change(config)
        digests.add(digest(config))
    assert len(digests) == len(CHANGES) + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"index": 1},
        {"layer_names": ("layer.0", "layer.2")},
        {"block_tokens": 8},
        {"heads": 1},
        {"dim_k": 2},
        {"dim_v": 2},
        {"dtype": torch.float16},
        {"record_class": "ssm"},
        {"tail": 2},
        {"page_bytes": (192, 192)},
        {"page_format": "cuda NHD"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_f25_each_property_of_a_group_counts(changes: dict[str, Any]) -> None:
    group = make_group()
    config = vllm_config()
    assert digest(config, [dataclasses.replace(group, **changes)]) != digest(config, [group])


def test_root_hash_fidelity_release_and_format_count(monkeypatch: pytest.MonkeyPatch) -> None:
    config = vllm_config()
    seen = [digest(config), digest(config, root=bytes(32)), digest(config, fidelity=2)]
    seen.append(digest(config, hash_tokens=2))
    with monkeypatch.context() as patch:
        patch.setattr(compat, "vllm_version", lambda: "0.0.1")
        seen.append(digest(config))
    with monkeypatch.context() as patch:
        patch.setattr(namespace, "KV_FORMAT_EPOCH", namespace.KV_FORMAT_EPOCH + 1)
        seen.append(digest(config))
    assert len(set(seen)) == len(seen)


def test_the_seed_counts_where_it_makes_the_weights() -> None:
    one, two = vllm_config(), vllm_config()
    for seed, config in enumerate((one, two)):
        config.load_config.load_format = "dummy"
        config.model_config.seed = seed
    assert digest(one) != digest(two)


def test_the_interpreter_counts_only_where_hashes_are_of_pickles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(algorithm: str) -> set[bytes]:
        config = vllm_config()
        config.cache_config.prefix_caching_hash_algo = algorithm
        here = digest(config)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "version_info", SimpleNamespace(major=3, minor=99))
            return {here, digest(config)}

    assert len(both("sha256")) == 2
    assert len(both("sha256_cbor")) == 1


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor", "builtin"])
def test_f27_weak_block_hashes_are_refused_by_name(algorithm: str) -> None:
    config = vllm_config()
    config.cache_config.prefix_caching_hash_algo = algorithm
    with pytest.raises(ValueError, match=f"--prefix-caching-hash-algo {algorithm}: .*sha256_cbor"):
        namespace.ingredients(config, [make_group()], 4)


def test_the_parts_are_text_for_people() -> None:
    parts = namespace.finish(namespace.ingredients(vllm_config(), [make_group()], 4), ROOT, 0).parts
    assert parts["none_hash"] == ROOT.hex()
    assert all(isinstance(value, str) for value in parts.values())


def test_a_hub_model_is_named_by_its_commit() -> None:
    assert weights.fingerprint("org/model", None, "abc") == "hub:org/model@abc"
    assert weights.fingerprint("org/model", "v2", None) == "hub:org/model@v2"
    assert weights.fingerprint("org/model", None, None) == "hub:org/model@main"


def test_any_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    prints = {weights.fingerprint(str(model), None, None)}
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    places = [0, 1, len(data) // 2, len(data) - 1]
    for place in places:
        data[place] ^= 1
        path.write_bytes(data)
        prints.add(weights.fingerprint(str(model), None, None))
        data[place] ^= 1
    assert len(prints) == 1 + len(places)


def test_of_a_large_file_ends_size_and_samples_count(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    path = model / "model.safetensors"
    size = 3 * limits.WEIGHT_SAMPLES * limits.WEIGHT_SAMPLE_BYTES
    prints = set()
    for place in (None, 0, size // 5, size - 1, size):
        with path.open("wb") as file:
            file.truncate(size)
            if place is not None:
                file.seek(place)
                file.write(b"\x01")
        prints.add(weights.fingerprint(str(model), None, None))
    assert len(prints) == 5


def test_a_weight_file_more_or_under_another_name_counts(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    prints = [weights.fingerprint(str(model), None, None)]
    (model / "model-2.safetensors").write_bytes(b"more")
    prints.append(weights.fingerprint(str(model), None, None))
    (model / "model-2.safetensors").rename(model / "model-3.safetensors")
    prints.append(weights.fingerprint(str(model), None, None))
    assert len(set(prints)) == 3
