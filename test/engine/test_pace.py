"""Restore or compute, by a real engine: fast links restore, slow ones compute, with the same answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.models import Models, prompt
from harness.processes import wait_until
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 128
BLOCKS = 8
#: A model that computes a prompt far slower than it loads one, on any machine.
HEAVY = Spec(layers=6, hidden=1024, heads=16, kv_heads=1, head_dim=64, vocab=512, dtype="float32")
#: Rate at which a prompt's blocks take a quarter of an hour.
SLOW_BYTES_PER_S = 4_000
#: Long enough that only the choice ends a restore.
PATIENT_MS = 60_000
#: Attempts, because a machine that pauses during a look-up loses that hit by design.
TRIES = 6


class Bench:
    """One engine behind a link with an adjustable rate."""

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.cluster = cluster
        self.saved = 0

    def seed(self, number: int) -> tuple[list[int], list[int]]:
        """Returns a prompt in the vault, and its answer. All have one length, which must suffice for learning."""
        text = prompt(number, BLOCKS * BLOCK + 3)
        answer = self.engine.ask(text)
        self.saved += BLOCKS
        self.cluster.wait_saved(self.saved)
        return text, list(answer["tokens"])

    def again(self, seeded: tuple[list[int], list[int]]) -> int:
        """Answers it again with an empty engine; returns the tokens found in caches."""
        text, right = seeded
        self.engine.empty()
        answer = self.engine.ask(text)
        assert answer["tokens"] == right
        return int(answer["cached"])

    def pace(self, **faults: int) -> None:
        assert self.cluster.proxy is not None
        self.cluster.proxy.set_faults(**faults)

    def wait_learned(self) -> None:
        """Waits until the sidecar knows the cost of computing here."""

        def knows() -> bool:
            (engine,) = self.cluster.status()["engines"]
            return engine["forecast"][0]["computeMs"] is not None

        wait_until(knows, "the sidecar has heard of the engine's steps")

    def count(self, name: str) -> int:
        return int(self.cluster.counters().get(name, 0))

    def told(self) -> list[dict[str, Any]]:
        """Returns the sidecar's accounts, the latest last."""
        code, told = self.cluster.command("explain")
        assert code == 0
        return list(told["requests"])


def test_an_engine_restores_over_a_fast_link_and_computes_behind_a_slow_one(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(when="faster", with_proxy=True, wait_ms=PATIENT_MS, stall_ms=PATIENT_MS)
    options = {
        "model": models.path(HEAVY),
        "dtype": HEAVY.dtype,
        "block_size": BLOCK,
        "max_model_len": 2048,
    }
    engine = engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config})
    bench = Bench(engine.wait_up(), cluster)
    fast, slow, slower = [bench.seed(number) for number in (900, 901, 902)]
    bench.wait_learned()

    found = [bench.again(fast) for _ in range(TRIES) if bench.count("plan_complete") == 0]
    assert found[-1] == BLOCKS * BLOCK, bench.told()

    bench.pace(bytesPerSecond=SLOW_BYTES_PER_S)
    assert bench.again(slow) < BLOCKS * BLOCK, "all of it came, however slow the link"
    assert bench.count("plan_slower") > 0, bench.told()
    found = [
        bench.again(slower)
        for _ in range(TRIES)
        if bench.count("decided_recomputed_slow_link") == 0
    ]
    assert bench.count("decided_recomputed_slow_link") > 0, bench.told()
    assert found[-1] == 0
    assert bench.count("plan_deadline") + bench.count("plan_vault_down") == 0

    case = bench.told()[-1]
    assert (case["choice"], case["why"], case["end"]) == ("recomputed", "slow_link", "slower")
    assert case["predicted"]["fetch"] > case["predicted"]["recompute"] > 0
