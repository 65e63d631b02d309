"""Two ranks, of tensors or of a pipeline: each saves its shard, a block needs all shards, both restore or none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt
from harness.releases import IS_LONG
from harness.shapes import TWO_CORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 6
TEXT = prompt(900, BLOCKS * BLOCK + 5)
#: KV heads of the model, which give the records of a block on two ranks; one head is on both.
HEADS = (2, 1)
#: Misses that are retried, TRIES times at most, because on two cores kept busy by two ranks the vault may be silent
#: until the sidecar gives up and reports it. Any other miss fails at once.
STARVED = {"misses_vault_down", "misses_deadline"}
TRIES = 5

pytestmark = pytest.mark.skipif(
    not IS_LONG, reason="two ranks start for minutes: `npm run test:nightly`"
)


@pytest.mark.parametrize("heads", HEADS)
def test_two_ranks_save_and_restore_every_block_together(
    heads: int, engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    spec = replace(PLAIN, kv_heads=heads)
    options = {"model": models.path(spec), "dtype": spec.dtype, "tensor_parallel_size": 2}
    there_and_back(engines, new_cluster(), options, heads)


def test_two_stages_of_a_pipeline_save_and_restore_every_block_together(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "pipeline_parallel_size": 2}
    there_and_back(engines, new_cluster(), options, 2)


def there_and_back(
    engines: Engines, cluster: Cluster, parallel: dict[str, Any], records: int
) -> None:
    """Saves a prompt as so many records of each block; restores it in the emptied engine and in another one."""
    options = {**parallel, "block_size": BLOCK, "kv_transfer_config": cluster.transfer_config}

    def start() -> Engine:
        engine = engines.start(vllm=options, environment=TWO_CORES)
        if "pipeline_parallel_size" in parallel:
            engine.call("compute_nothing")
        return engine.wait_up()

    with start() as engine:
        cold = engine.ask(TEXT)
        assert cold["cached"] == 0
        cluster.wait_saved(records * BLOCKS)
        assert cluster.counters()["blocks_saved"] == records * BLOCKS
        own_hit = engine.ask(TEXT)
        assert own_hit["cached"] == BLOCKS * BLOCK
        pages = engine.call("pages_by_group", prompt=TEXT)
        check(restore(engine), own_hit)
        assert engine.call("pages_by_group", prompt=TEXT) == pages
        assert cluster.counters()["blocks_restored_vault"] == BLOCKS
        (seen,) = cluster.wait_idle()["engines"]
        assert (seen["world"], seen["workers"]) == (2, 2)
    with start() as another:
        check(restore(another), own_hit)
        assert another.call("pages_by_group", prompt=TEXT) == pages
        assert cluster.counters()["blocks_restored_vault"] == 2 * BLOCKS


def check(restored: dict[str, Any], own_hit: dict[str, Any]) -> None:
    assert restored["tokens"] == own_hit["tokens"]
    assert restored["logprobs"] == pytest.approx(own_hit["logprobs"], abs=1e-6)


def restore(engine: Engine) -> dict[str, Any]:
    """Returns the answer when the engine's cache and pages hold nothing of the prompt."""
    for _ in range(TRIES):
        engine.empty()
        engine.wait_up()
        before = misses(engine)
        answer = engine.ask(TEXT)
        if answer["cached"] == BLOCKS * BLOCK:
            return dict(answer)
        new = misses(engine) - before
        assert new
        assert new.keys() <= STARVED, f"{answer['cached']} tokens, {new}"
    raise AssertionError(f"starved {TRIES} times")


def misses(engine: Engine) -> Counter[str]:
    """Returns the reasons of misses so far."""
    counted = engine.call("status")["counters"]
    return Counter({name: n for name, n in counted.items() if name.startswith("misses_")})
