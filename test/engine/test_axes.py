"""A real engine's pages hold its own K and V where the probe found them, whatever the order of the CPU's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster

BLOCKS = 3


@pytest.mark.parametrize(("dtype", "block"), [("float32", 32), ("bfloat16", 128)])
def test_what_a_forward_writes_is_what_a_slot_gets(
    dtype: str,
    block: int,
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    models: Models,
) -> None:
    cluster = new_cluster()
    options = {"model": models.path(PLAIN), "dtype": dtype, "block_size": block}
    engine = engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config})
    with engine.wait_up() as running:
        text = prompt(1200, BLOCKS * block + 3)
        found = running.call("compare_axes", prompt=text)
        layers = found["compared"] // BLOCKS
        assert layers > 1
        assert found == {"compared": layers * BLOCKS, "wrong": 0, "canonical": 1, "opaque": 0}
