"""Shared memory instead of a vault: one engine restores another's blocks, each with its own sidecar."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest
from harness.models import HYBRID, PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.engine import Engine, Engines
    from harness.processes import Cluster
    from lab.checkpoint import Spec

BLOCK = 32
BLOCKS = 5
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def region() -> Iterator[Path]:
    path = Path(f"/dev/shm/tierkv-engines-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def test_an_engine_restores_what_another_computed_whose_sidecar_was_killed(
    region: Path,
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    models: Models,
) -> None:
    first, second = (new_cluster(region=region) for _ in range(2))
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}

    def start(cluster: Cluster) -> Engine:
        vllm = {**options, "kv_transfer_config": cluster.transfer_config}
        return engines.start(vllm=vllm).wait_up()

    text = prompt(900, BLOCKS * BLOCK + 3)
    writer, reader = start(first), start(second)
    computed = writer.ask(text)
    first.wait_saved(BLOCKS)
    first.sidecar.kill()
    reader.call("spoil")
    restored = reader.ask(text)
    assert (computed["cached"], restored["cached"]) == (0, BLOCKS * BLOCK)
    assert restored["tokens"] == computed["tokens"]
    assert reader.call("pages", prompt=text) == writer.call("pages", prompt=text)
    counters = second.counters()
    assert counters["blocks_restored_shared"] == BLOCKS
    assert counters["blocks_restored_vault"] == 0
    first.sidecar.start()  # also removes the dead one's socket


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["attention", "recurrent states"])
def test_what_one_engine_hands_over_another_answers_and_no_network_socket_is_open(
    spec: Spec,
    region: Path,
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    models: Models,
) -> None:
    tier: dict[str, Any] = {"region": region, "with_ssm": spec is HYBRID, "wait_ms": 60_000}
    producers, consumers = new_cluster(**tier), new_cluster(**tier)
    options: dict[str, Any] = {"model": models.path(spec), "dtype": spec.dtype}
    options |= {"block_size": BLOCK} if spec is PLAIN else {"num_gpu_blocks_override": None}

    def answer(cluster: Cluster | None, role: str, **wish: Any) -> dict[str, Any]:
        vllm = dict(options)
        if cluster is not None:
            vllm["kv_transfer_config"] = {**cluster.transfer_config, "kv_role": role}
        with engines.start(vllm=vllm) as engine:
            if cluster is not None:
                engine.wait_up()
            found = engine.ask(prompt(910, 400), **wish)
            return dict(found)

    computed = answer(None, "")
    told = answer(producers, "kv_producer", max_tokens=1)["transfer"]
    restored = answer(consumers, "kv_consumer", transfer=told)
    assert restored["cached"] == told["tierkv"]["handoff"]["tokens"] > 0
    assert restored["tokens"] == computed["tokens"]
    for cluster in (producers, consumers):
        assert not psutil.Process(cluster.sidecar.child.pid).net_connections("inet")
    counters = consumers.counters()
    assert counters["blocks_restored_shared"] > 0
    assert (counters["handoffs"], counters["handoffs_late"]) == (1, 0)
