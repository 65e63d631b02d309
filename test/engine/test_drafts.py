"""A draft model with layers of its own: after a restore it drafts as after an own hit, so as many are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.drafter import write_mtp, write_pair
from harness.models import PLAIN, prompt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

Json = dict[str, Any]
#: PLAIN with heads as wide as Qwen2 has them for its width.
MTP = replace(PLAIN, hidden=256)
BLOCK = 32
BLOCKS = 4
TOKENS = 60


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


def asked(engine: Engine, text: list[int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the answer, and what was drafted and accepted for it."""
    before = engine.call("drafts")
    answer = engine.ask(text, max_tokens=TOKENS)
    return answer, {name: count - before[name] for name, count in engine.call("drafts").items()}


def pair(folder: Path) -> Json:
    target, head = write_pair(folder, PLAIN)
    drafts = {"method": "eagle", "model": head, "num_speculative_tokens": 3}
    return {"model": target, "speculative_config": drafts}


def mtp(folder: Path) -> Json:
    drafts = {"method": "mtp", "num_speculative_tokens": 1}
    return {"model": write_mtp(folder / "mtp", MTP), "speculative_config": drafts}


@pytest.mark.parametrize("written", [pair, mtp])
def test_after_a_restore_as_many_drafts_are_accepted_as_after_an_own_hit(
    release_engines: Engines,
    cluster: Cluster,
    tmp_path: Path,
    written: Callable[[Path], Json],
) -> None:
    options = {"dtype": PLAIN.dtype, "block_size": BLOCK, "disable_log_stats": False}
    options |= {"kv_transfer_config": cluster.transfer_config, **written(tmp_path)}
    text = prompt(970, BLOCKS * BLOCK + 7)
    before = cluster.counters()
    with release_engines.start(vllm=options).wait_up() as engine:
        # The head's layer is among those that are stored.
        assert engine.call("facts")["layers"] == PLAIN.layers + 1
        cold, _ = asked(engine, text)
        own, own_drafts = asked(engine, text)
        assert 0 < own_drafts["accepted"] < own_drafts["drafted"], own_drafts
        offered = engine.call("status")["counters"]["blocks_offered"]
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + offered)
        engine.empty()
        restored, drafts_after = asked(engine, text)
        assert restored["cached"] == own["cached"] > 0
        assert restored["tokens"] == own["tokens"] == cold["tokens"]
        assert drafts_after == own_drafts
