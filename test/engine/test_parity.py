"""Parity: restored bytes equal saved ones, and the engine's answer is the same with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, prompt
from lab.checkpoint import Spec
from tierkv.connectors.vllm import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

VOCAB = 512


@dataclass(frozen=True)
class Geometry:
    """One model and block size; every pair of values of two columns occurs."""

    name: str
    spec: Spec
    block: int


def geometry(
    heads: int, kv_heads: int, head_dim: int, block: int, dtype: str, layers: int
) -> Geometry:
    spec = Spec(
        kind="llama",
        hidden=128,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=VOCAB,
        dtype=dtype,
    )
    attention = "mha" if heads == kv_heads else "gqa"
    return Geometry(f"{attention}-{head_dim}-{block}-{dtype}", spec, block)


GEOMETRIES = [
    geometry(4, 2, 64, 32, "bfloat16", layers=2),
    geometry(2, 2, 96, 32, "float32", layers=2),
    geometry(2, 2, 128, 128, "bfloat16", layers=2),
]
GEOMETRIES_NIGHTLY = [
    geometry(2, 2, 64, 128, "float32", layers=3),
    geometry(4, 2, 96, 128, "bfloat16", layers=3),
    geometry(4, 1, 128, 32, "float32", layers=4),
]
EACH = [
    *GEOMETRIES,
    *(pytest.param(of, marks=pytest.mark.nightly) for of in GEOMETRIES_NIGHTLY),
]


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


def start(engines: Engines, cluster: Cluster, models: Models, of: Geometry, **more: Any) -> Engine:
    options = {"model": models.path(of.spec), "dtype": of.spec.dtype, "block_size": of.block}
    options["kv_transfer_config"] = cluster.transfer_config
    return engines.start(vllm=options, **more)


def same(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Expects the answer of the own hit: same tokens, same log-probabilities."""
    assert ours["tokens"] == theirs["tokens"]
    assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=tolerance)


@pytest.mark.parametrize("of", EACH, ids=lambda of: of.name)
def test_a_restore_equals_the_engines_own_hit(
    of: Geometry, engines: Engines, cluster: Cluster, models: Models
) -> None:
    blocks = 6
    text = prompt(1, blocks * of.block + 5)
    before = cluster.counters()
    with start(engines, cluster, models, of).wait_up() as engine:
        cold = engine.ask(text)
        saved = engine.call("pages", prompt=text)
        assert (cold["cached"], len(saved), len(set(saved))) == (0, blocks, blocks)
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + blocks)
        own_hit = engine.ask(text)
        assert own_hit["cached"] == blocks * of.block

        engine.empty()
        assert engine.call("pages", prompt=text) == []
        restored = engine.ask(text)
        assert restored["cached"] == blocks * of.block
        assert engine.call("pages", prompt=text) == saved
        same(restored, own_hit)

    if of is GEOMETRIES[-1]:  # records in the vault outlive engine and sidecar
        assert cluster.sidecar.stop() == 0
        cluster.sidecar.start()
    before = cluster.counters()
    with start(engines, cluster, models, of).wait_up() as engine:
        engine.call("spoil")
        again = engine.ask(text)
        seen = engine.call("status")["counters"], cluster.status()
        assert again["cached"] == blocks * of.block, seen
        assert engine.call("pages", prompt=text) == saved
        same(again, own_hit)
        assert seen[0]["tokens_restored"] == blocks * of.block
    after = cluster.counters()
    assert after["blocks_restored_vault"] == before["blocks_restored_vault"] + blocks
    assert after["bad_records"] == 0


@pytest.mark.nightly
def test_in_the_usual_several_processes_it_is_the_same(
    engines: Engines, cluster: Cluster, models: Models
) -> None:
    of, blocks = GEOMETRIES[1], 6  # float32, because the two kinds of engine round differently
    texts = {
        name: prompt(seed, blocks * of.block + 5) for seed, name in enumerate(("ours", "mp"), 2)
    }
    with start(engines, cluster, models, of).wait_up() as engine:
        before = cluster.counters()
        engine.call("generate", prompts=[texts["ours"]])
        ours = engine.ask(texts["ours"])
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + blocks)

    with start(engines, cluster, models, of, processes=True) as engine:
        cluster.wait_restoring()
        # On CPUs with AMX a load before the first large step is shorter.
        engine.call("generate", prompts=[prompt(49, limits.AMX_FIRST_TOKENS)])
        before = cluster.counters()
        restored = engine.ask(texts["ours"])
        assert restored["cached"] == blocks * of.block
        same(restored, ours, 1e-4)
        cold = engine.ask(texts["mp"])
        assert cold["cached"] == 0
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + blocks)
        own_hit = engine.ask(texts["mp"])
        assert own_hit["cached"] == blocks * of.block
        # Other prompts take all 63 blocks, so that no page holds restored content by chance.
        assert engine.call("reset")
        engine.call("generate", prompts=[prompt(seed, 20 * of.block) for seed in range(50, 54)])
        assert engine.call("reset")
        restored = engine.ask(texts["mp"])
        assert restored["cached"] == blocks * of.block
        same(restored, own_hit)
    after = cluster.counters()
    assert after["blocks_restored_vault"] >= before["blocks_restored_vault"] + 2 * blocks
