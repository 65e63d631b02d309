"""Two ranks: each saves its shard, a block counts only with all shards, and both restore it or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt
from harness.releases import IS_LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 6
TEXT = prompt(900, BLOCKS * BLOCK + 5)
#: KV heads of the model, and so into how many records a block of two ranks is cut; one head lies on both.
HEADS = (2, 1)

pytestmark = pytest.mark.skipif(
    not IS_LONG, reason="two ranks start for minutes: `npm run test:matrix`"
)


@pytest.mark.parametrize("heads", HEADS)
def test_two_ranks_save_and_restore_every_block_together(
    heads: int, engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    spec = replace(PLAIN, kv_heads=heads)
    options: dict[str, Any] = {"model": models.path(spec), "dtype": spec.dtype}
    options |= {"block_size": BLOCK, "tensor_parallel_size": 2}
    options["kv_transfer_config"] = cluster.transfer_config
    binding = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with engines.start(vllm=options, processes=True, environment=binding) as engine:
        cluster.wait_restoring()
        (cold,) = engine.call("generate", prompts=[TEXT])
        assert cold["cached"] == 0
        cluster.wait_saved(heads * BLOCKS)
        assert cluster.counters()["blocks_saved"] == heads * BLOCKS
        (own_hit,) = engine.call("generate", prompts=[TEXT])
        assert own_hit["cached"] == BLOCKS * BLOCK
        # Other prompts take all 63 blocks, so that no page holds by chance what is to be restored.
        assert engine.call("reset")
        engine.call("generate", prompts=[prompt(seed, 20 * BLOCK) for seed in range(901, 905)])
        assert engine.call("reset")
        before = cluster.counters()
        (restored,) = engine.call("generate", prompts=[TEXT])
        assert restored["cached"] == BLOCKS * BLOCK, cluster.status()
        assert restored["tokens"] == own_hit["tokens"]
        assert restored["logprobs"] == pytest.approx(own_hit["logprobs"], abs=1e-6)
        after = cluster.counters()
        assert after["blocks_restored_vault"] - before["blocks_restored_vault"] == BLOCKS
        (seat,) = cluster.wait_idle()["engines"]
        assert (seat["world"], seat["workers"]) == (2, 2)
