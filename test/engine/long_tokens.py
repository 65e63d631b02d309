"""A thousand prompts: the same tokens without a cache, cold, warm and under faults (goal G23).

Run by `npm run test:long -- --only tokens`; TIERKV_TEST_PROMPTS says how many.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from typing import TYPE_CHECKING, Any

from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

PROMPTS = int(os.environ.get("TIERKV_TEST_PROMPTS", "40"))
SEED = int(os.environ.get("TIERKV_TEST_SEED", secrets.randbelow(2**31)))
BATCH = 20
BLOCK = 32
BLOCKS = 5
#: Of a fetch, by the proxy between sidecar and vault; each in turn.
FAULTS: list[dict[str, Any]] = [
    {"corruptEvery": 2},
    {"swapAt": 1},
    {"dropAt": 2},
    {"delayMs": 20},
    {"hangAt": 2},
]


class Scene:
    """An engine whose vault stands behind a proxy, and one without any."""

    def __init__(self, engines: Engines, cluster: Cluster, models: Models) -> None:
        options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
        self.cluster = cluster
        self.plain: Engine = engines.start(vllm={**options, "enable_prefix_caching": False})
        transfer = cluster.transfer_config
        self.engine: Engine = engines.start(vllm={**options, "kv_transfer_config": transfer})
        self.engine.wait_up()
        self.wrong = 0
        self.restored = 0
        self.broken = 0

    def empty(self) -> None:
        assert self.engine.call("reset")
        self.engine.call("spoil")

    def compare(self, texts: list[list[int]], right: list[list[int]]) -> list[int]:
        """Answers the prompts; gives the tokens of each that were found in caches."""
        answers = self.engine.call("generate", prompts=texts)
        self.wrong += sum(a["tokens"] != r for a, r in zip(answers, right, strict=True))
        return [int(answer["cached"]) for answer in answers]

    def batch(self, texts: list[list[int]], faults: dict[str, Any]) -> None:
        """Each prompt without a cache, cold, from the vault, and from the vault under faults."""
        proxy = self.cluster.proxy
        assert proxy is not None
        right = [list(answer["tokens"]) for answer in self.plain.call("generate", prompts=texts)]
        counters = self.cluster.counters()
        before = int(counters["blocks_saved"] + counters["saves_present"])
        assert self.compare(texts, right) == [0] * len(texts)
        self.cluster.wait_saved(before + BLOCKS * len(texts))
        self.empty()
        self.restored += sum(found > 0 for found in self.compare(texts, right))
        self.empty()
        proxy.set_faults(**faults)
        found = self.compare(texts, right)
        self.broken += sum(tokens < BLOCKS * BLOCK for tokens in found)
        proxy.set_faults()
        self.cluster.wait_idle()
        self.cluster.wait_restoring()
        self.empty()


def test_tokens_are_the_same_without_a_cache_cold_warm_and_under_faults(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(with_proxy=True, stall_ms=400, wait_ms=5000)
    scene = Scene(engines, cluster, models)
    dice = random.Random(SEED)
    for begin in range(0, PROMPTS, BATCH):
        texts = [prompt(dice.randrange(2**31), BLOCKS * BLOCK + 3) for _ in range(BATCH)]
        scene.batch(texts, FAULTS[begin // BATCH % len(FAULTS)])
        assert scene.wrong == 0, f"seed {SEED}"
    told = {
        "seed": SEED,
        "prompts": PROMPTS,
        "restored": scene.restored,
        "broken": scene.broken,
        "wrong": scene.wrong,
    }
    print(f"tokens {json.dumps(told)}")
    assert scene.restored > PROMPTS / 2, "void: nothing came from the vault"
    assert scene.broken > 0, "void: no fault acted"
