"""The check of truth on real engines: restored values equal computed ones, and a difference ends their use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 6
TEXT = prompt(990, BLOCKS * BLOCK + 3)
#: Deep enough for bfloat16 to round differently where another chunk is computed.
DEEP = replace(PLAIN, layers=12, dtype="bfloat16", seed=3)


def started(engines: Engines, cluster: Cluster, folder: str, dtype: str) -> Engine:
    options = {"model": folder, "dtype": dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    return engines.start(vllm=options).wait_up()


def ask(engine: Engine, text: list[int]) -> dict[str, Any]:
    """Answers with an empty cache and overwritten pages."""
    engine.empty()
    return engine.ask(text)


def counted(cluster: Cluster, name: str) -> int:
    return int(cluster.counters().get(f"shim_{name}", 0))


@pytest.mark.parametrize(
    "int8",
    [pytest.param(False, id="exact"), pytest.param(True, id="int8", marks=pytest.mark.nightly)],
)
def test_each_restore_is_checked_and_rounding_is_no_difference(
    int8: bool, engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(verify="every", int8=int8)
    engine = started(engines, cluster, models.path(DEEP), DEEP.dtype)
    texts = [prompt(991 + number, BLOCKS * BLOCK + 3 + 40 * number) for number in range(3)]
    for text in texts:
        ask(engine, text)
    cluster.wait_saved(sum((len(text) - 1) // BLOCK for text in texts))
    for text in texts:
        assert ask(engine, text)["cached"] == ((len(text) - 1) // BLOCK - 1) * BLOCK
    cluster.wait_count("shim_truth_checks", 3)
    assert counted(cluster, "truth_mismatches") == 0


def test_f69_weights_written_behind_everybodys_back_are_found_out(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(verify="every")
    engine = started(engines, cluster, models.path(PLAIN), PLAIN.dtype)
    ask(engine, TEXT)
    cluster.wait_saved(BLOCKS)
    engine.call("scale_weights", scale=1.5)
    # This request uses old blocks; its finding ends that.
    assert ask(engine, TEXT)["cached"] == (BLOCKS - 1) * BLOCK
    cluster.wait_count("shim_truth_mismatches", 1)
    cluster.wait_count("namespaces_quarantined", 1)
    right = ask(engine, TEXT)
    assert right["cached"] == 0
    # Another engine of that name distrusts it as well, and nothing is saved under it.
    beside = started(engines, cluster, models.path(PLAIN), PLAIN.dtype)
    saved = cluster.saved()
    assert ask(beside, TEXT)["cached"] == 0
    assert cluster.wait_idle()["counters"]["blocks_saved"] == saved
    code, status = cluster.command("status")
    assert (code, status["findings"][0]["code"]) == (1, "quarantined")
