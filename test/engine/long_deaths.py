"""A vault that dies in mid-load, again and again: right tokens, and how late the first one comes (goal G9).

Run by `npm run test:long -- --only deaths`; TIERKV_TEST_DEATHS says how many. Times are told, not judged.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

DEATHS = int(os.environ.get("TIERKV_TEST_DEATHS", "3"))
SEED = int(os.environ.get("TIERKV_TEST_SEED", secrets.randbelow(2**31)))
BLOCK = 32
BLOCKS = 8
#: Restores that go well, from which it is known how long one takes.
WHOLE = 5
#: The defaults of a sidecar.
STALL_MS, WAIT_MS = 400, 5000
_SEEDS = itertools.count(9_000)


def first_token(engine: Engine, text: list[int]) -> tuple[float, dict[str, Any]]:
    """Seconds until the first token, and the answer."""
    begun = time.perf_counter()
    (answer,) = engine.call("generate", prompts=[text], max_tokens=1)
    return time.perf_counter() - begun, answer


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Scene:
    """An engine behind a vault that will die, and one without any."""

    def __init__(self, engine: Engine, plain: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.plain = plain
        self.cluster = cluster

    def seed(self) -> list[int]:
        """A prompt that the vault holds and the engine does not."""
        text = prompt(next(_SEEDS), BLOCKS * BLOCK + 3)
        counters = self.cluster.counters()
        before = int(counters["blocks_saved"] + counters["saves_present"])
        self.engine.call("generate", prompts=[text], max_tokens=1)
        self.cluster.wait_saved(before + BLOCKS)
        self.empty()
        return text

    def empty(self) -> None:
        assert self.engine.call("reset")
        self.engine.call("spoil")

    def heal(self) -> None:
        """The vault is back, and the sidecar has found it."""
        if not self.cluster.vault.is_running:
            self.cluster.vault.start()
        wait_until(lambda: self.cluster.status()["vaults"]["kv"]["state"] == "up", "the vault")
        self.engine.wait_up()

    def computed(self, text: list[int]) -> tuple[float, list[int]]:
        assert self.plain.call("reset")
        seconds, answer = first_token(self.plain, text)
        return seconds, list(answer["tokens"])


def begin(engines: Engines, cluster: Cluster, models: Models) -> Scene:
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    plain = engines.start(vllm=options)
    engine = engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config})
    return Scene(engine, plain, cluster)


def test_a_vault_that_dies_in_mid_load_costs_little_time_and_no_request(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(stall_ms=STALL_MS, wait_ms=WAIT_MS)
    scene = begin(engines, cluster, models)
    dice = random.Random(SEED)
    scene.heal()
    whole: list[float] = []
    for _ in range(WHOLE):
        text = scene.seed()
        seconds, answer = first_token(scene.engine, text)
        assert answer["cached"] == BLOCKS * BLOCK
        whole.append(seconds)
        scene.empty()
    killed: list[float] = []
    computed: list[float] = []
    broken = 0
    for _ in range(DEATHS):
        text = scene.seed()
        death = threading.Timer(dice.uniform(0, quantile(whole, 0.5)), cluster.vault.kill)
        death.start()
        seconds, answer = first_token(scene.engine, text)
        death.join()
        without, right = scene.computed(text)
        assert answer["tokens"] == right, f"seed {SEED}"
        killed.append(seconds)
        computed.append(without)
        broken += answer["cached"] < BLOCKS * BLOCK
        scene.empty()
        scene.heal()
    told = {
        "seed": SEED,
        "deaths": DEATHS,
        "broken": broken,
        "wrong": 0,
        "wholeMs": round(quantile(whole, 0.5) * 1e3, 1),
        "computedMs": round(quantile(computed, 0.5) * 1e3, 1),
        "computedP99Ms": round(quantile(computed, 0.99) * 1e3, 1),
        "killedMs": round(quantile(killed, 0.5) * 1e3, 1),
        "killedP99Ms": round(quantile(killed, 0.99) * 1e3, 1),
    }
    print(f"deaths {json.dumps(told)}")
    assert broken > 0, "void: no death came in time"
