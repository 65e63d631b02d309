"""One restore over lanes, one over gRPC alone, by a real engine: the same blocks, the same answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 5


@pytest.mark.parametrize(("lanes", "way", "other"), [(4, "lanes", "grpc"), (0, "grpc", "lanes")])
def test_an_engine_restores_over_lanes_and_over_grpc_alone(
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    models: Models,
    lanes: int,
    way: str,
    other: str,
) -> None:
    cluster = new_cluster(lanes=lanes)
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    engine = engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config})
    engine.wait_up()
    text = prompt(700 + lanes, BLOCKS * BLOCK + 3)
    (computed,) = engine.call("generate", prompts=[text])
    cluster.wait_saved(BLOCKS)
    assert engine.call("reset")
    engine.call("spoil")
    (restored,) = engine.call("generate", prompts=[text])
    assert (computed["cached"], restored["cached"]) == (0, BLOCKS * BLOCK)
    assert restored["tokens"] == computed["tokens"]
    counters = cluster.counters()
    assert min(counters[f"stores_{way}"], counters[f"fetches_{way}"]) > 0
    assert (counters[f"stores_{other}"], counters[f"fetches_{other}"]) == (0, 0)
