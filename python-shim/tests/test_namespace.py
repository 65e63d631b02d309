"""The namespace: same engine, same digest; whatever changes a block's meaning changes the digest."""

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.pages.specs import Group

from .support.engine import make_group, vllm_config

ROOT = bytes(range(32))


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


def test_two_starts_of_the_same_engine_agree() -> None:
    one = digest(vllm_config())
    assert len(one) == 32
    assert digest(vllm_config()) == one


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


def test_root_hash_fidelity_and_format_count(monkeypatch: pytest.MonkeyPatch) -> None:
    config = vllm_config()
    seen = [digest(config), digest(config, root=bytes(32)), digest(config, fidelity=2)]
    seen.append(digest(config, hash_tokens=2))
    with monkeypatch.context() as patch:
        patch.setattr(namespace, "KV_FORMAT_EPOCH", namespace.KV_FORMAT_EPOCH + 1)
        seen.append(digest(config))
    assert len(set(seen)) == len(seen)


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
