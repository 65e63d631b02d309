"""Shared memory instead of a vault: what one engine computes another restores, each with a sidecar of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

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
    (computed,) = writer.call("generate", prompts=[text])
    first.wait_saved(BLOCKS)
    first.sidecar.kill()
    reader.call("spoil")
    (restored,) = reader.call("generate", prompts=[text])
    assert (computed["cached"], restored["cached"]) == (0, BLOCKS * BLOCK)
    assert restored["tokens"] == computed["tokens"]
    assert reader.call("pages", prompt=text) == writer.call("pages", prompt=text)
    counters = second.counters()
    assert counters["blocks_restored_shared"] == BLOCKS
    assert counters["blocks_restored_vault"] == 0
    first.sidecar.start()  # takes the socket of the dead one away with it
