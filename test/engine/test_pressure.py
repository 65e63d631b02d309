"""Pressure: a small cache, shared prefixes, aborts and preemptions; every answer as without tierKV."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from harness.leftovers import check_nothing_left
from harness.models import PLAIN, Models, prompt
from harness.releases import IS_LONG, MAIN, OLDEST
from harness.shapes import SHAPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster
    from lab.checkpoint import Spec

BLOCK = 32
REQUESTS = 300 if IS_LONG else 200
IN_FLIGHT = 8
ABORTS_PER_STEP = 0.06
PRESS_S = 700.0


@dataclass(frozen=True)
class Case:
    """A model under pressure. `unit`: tokens by which prompts are measured; `cache`: too small for eight requests.

    `is_equal`: whether it computes the same tokens under any schedule, so with and without tierKV.
    """

    spec: Spec
    unit: int
    cache: int
    options: dict[str, Any]
    is_equal: bool = True


CASES = {"full attention": Case(PLAIN, BLOCK, 34, {"block_size": BLOCK, "max_model_len": 512})}
if IS_LONG:
    window, hybrid = SHAPES["sliding window"], SHAPES["hybrid"]
    CASES["sliding window"] = Case(
        window.spec, BLOCK, 50, {"block_size": BLOCK, "max_model_len": 512}
    )
    CASES["hybrid"] = Case(hybrid.spec, 128, 44, {"max_model_len": 2048}, is_equal=False)


def make_work(unit: int) -> dict[str, Any]:
    """Returns prompts of one to eight units, most with one of six prefixes, and the answers' lengths."""
    chance = random.Random(11)
    prefixes = [prompt(400 + number, chance.randrange(2, 6) * unit) for number in range(6)]
    prompts = []
    for number in range(REQUESTS):
        prefix = chance.choice(prefixes) if chance.random() < 0.8 else []
        prompts.append(prefix + prompt(500 + number, chance.randrange(3, 3 * unit)))
    return {"prompts": prompts, "max_tokens": [chance.randrange(4, 40) for _ in prompts]}


def runnable() -> list[Any]:
    """Returns the cases, skipping ones that the main release refuses."""
    skip = pytest.mark.skipif(MAIN == OLDEST, reason="needs vLLM 0.29")
    return [pytest.param(name, marks=[skip] if name == "hybrid" else []) for name in CASES]


@pytest.mark.parametrize("name", runnable())
def test_under_pressure_every_answer_is_the_one_without_tierkv(
    name: str,
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    models: Models,
    record_property: Callable[[str, Any], None],
) -> None:
    case = CASES[name]
    work = make_work(case.unit)
    cluster = new_cluster(with_ssm=name == "hybrid")
    options = {
        "model": models.path(case.spec),
        "dtype": case.spec.dtype,
        "max_num_seqs": IN_FLIGHT,
        "num_gpu_blocks_override": case.cache,
        **case.options,
    }
    wanted: dict[str, list[int]] = {}
    if case.is_equal:
        with engines.start(vllm=options) as engine:
            wanted = engine.call("press", PRESS_S, **work, in_flight=IN_FLIGHT)["answers"]
        assert len(wanted) == REQUESTS

    with engines.start(
        vllm={**options, "kv_transfer_config": cluster.transfer_config},
        shim_limits={"LOAD_BYTES_PER_STEP_MAX": 1},  # so that loads take a step for each block
    ).wait_up() as engine:
        result = engine.call(
            "press", PRESS_S, **work, in_flight=IN_FLIGHT, aborts=ABORTS_PER_STEP, seed=3
        )
        answers, seen = result.pop("answers"), result["seen"]
        if case.is_equal:
            assert answers == {number: wanted[number] for number in answers}
        assert (result["strange"], result["pages"] > 0) == (0, True)
        aborted = seen["aborted"] + seen["aborted_loading"] + seen["aborted_asking"]
        assert len(answers) == REQUESTS - aborted
        assert min(seen.values()) >= 3, seen

        assert engine.call("reset")
        status = check_nothing_left(engine, cluster)
        assert status["counters"]["restores_admitted"] >= 40
    counters = cluster.counters()
    assert counters["bad_records"] == 0
    assert counters["blocks_restored_vault"] + counters["blocks_restored_local"] > 0
    admitted = status["counters"]["restores_admitted"]
    for key, value in {**result, "answers": len(answers), "restores": admitted}.items():
        record_property(key, value)
    print(f"{name}: {result}, {len(answers)} answers, {admitted} restores")
