"""Pressure: a cache too small for the work, shared prefixes, aborts and preemptions; every answer as without tierKV."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster

BLOCK = 32
REQUESTS = 200
IN_FLIGHT = 8
#: Eight requests need 40 to 80 blocks at their end.
CACHE_BLOCKS = 34
ABORTS_PER_STEP = 0.06


def make_work() -> dict[str, Any]:
    """Prompts of one to eight blocks, most of them with one of six prefixes, and how long each answer is."""
    chance = random.Random(11)
    prefixes = [prompt(400 + number, chance.randrange(2, 6) * BLOCK) for number in range(6)]
    prompts = []
    for number in range(REQUESTS):
        prefix = chance.choice(prefixes) if chance.random() < 0.8 else []
        prompts.append(prefix + prompt(500 + number, chance.randrange(3, 3 * BLOCK)))
    return {"prompts": prompts, "max_tokens": [chance.randrange(4, 40) for _ in prompts]}


def test_under_pressure_every_answer_is_the_one_without_tierkv(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    work = make_work()
    cluster = new_cluster()
    options = {
        "model": models.path(PLAIN),
        "dtype": PLAIN.dtype,
        "block_size": BLOCK,
        "max_num_seqs": IN_FLIGHT,
        "max_model_len": 512,
        "num_gpu_blocks_override": CACHE_BLOCKS,
    }
    with engines.start(vllm=options) as engine:
        wanted = engine.call("press", **work, in_flight=IN_FLIGHT)["answers"]
    assert len(wanted) == REQUESTS

    block_bytes = PLAIN.layers * PLAIN.kv_heads * BLOCK * 2 * PLAIN.head_dim * 4
    with engines.start(
        vllm={**options, "kv_transfer_config": cluster.transfer_config},
        shim_limits={"LOAD_BYTES_PER_STEP_MAX": block_bytes},  # loads take as many steps as blocks
    ).wait_up() as engine:
        result = engine.call("press", **work, in_flight=IN_FLIGHT, aborts=ABORTS_PER_STEP, seed=3)
        answers, seen = result["answers"], result["seen"]
        assert {number: answers[number] for number in answers} == {n: wanted[n] for n in answers}
        aborted = seen["aborted"] + seen["aborted_loading"] + seen["aborted_asking"]
        assert len(answers) == REQUESTS - aborted
        assert min(seen.values()) >= 3, seen

        assert engine.call("reset")
        status = engine.call("status")
        assert status["counters"]["restores_admitted"] >= 40
        assert status["shim"] == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
        assert (status["requests"], status["blocks_in_use"]) == (0, 0)
        (seat,) = cluster.wait_idle()["engines"]
        arena = seat["arena"]
        assert arena["leasedSlots"] == status["worker"]["credits"] + seat["retainedBlocks"]
        assert arena["freeSlots"] + arena["leasedSlots"] == arena["touchedSlots"]
    counters = cluster.counters()
    assert counters["bad_records"] == 0
    assert counters["blocks_restored_vault"] + counters["blocks_restored_local"] > 0
