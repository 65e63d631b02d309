"""tierKV as a secondary tier of vLLM's own offloading: blocks lost by the primary tier come back, or are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 12
#: Bytes of the primary tier, in chunks of one block.
CHUNK_BYTES = 2 * 2 * 2 * 64 * BLOCK * 4


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


class Bench:
    """Starts engines that offload, and ends them as vLLM does; nothing may be left in shared memory."""

    def __init__(self, engines: Engines, cluster: Cluster, models: Models) -> None:
        self._engines = engines
        self.cluster = cluster
        self._model = models.path(PLAIN)
        self._started: list[Engine] = []

    def start(self, chunk: int = BLOCK, chunks: int = 64, **changes: Any) -> Engine:
        tier = {"type": "TierKVTier", "module_path": "tierkv.connectors.vllm.offloading.tier"}
        transfer = {
            "kv_connector": "TierKVOffloadingConnector",
            "kv_connector_module_path": "tierkv.connectors.vllm.offloading.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec",
                "spec_module_path": "harness.cpu_tiering",
                "block_size": chunk,
                "cpu_bytes_to_use": chunks * CHUNK_BYTES,
                "secondary_tiers": [{**tier, "config_path": str(self.cluster.config_path)}],
            },
        }
        options = {"model": self._model, "dtype": PLAIN.dtype, "block_size": BLOCK}
        options |= {"kv_transfer_config": transfer, **changes}
        engine = self._engines.start(vllm=options)
        self._started.append(engine)
        self.cluster.wait_restoring()
        return engine

    def end(self) -> None:
        while self._started:
            engine = self._started.pop()
            assert engine.call("end_offloading") == []
            engine.end()
        # `wait_restoring` of the next one would count an engine that the sidecar has not missed yet.
        wait_until(lambda: not self.cluster.status()["engines"], "the sidecar has seen them go")

    def save(self, engine: Engine, text: list[int], blocks: int) -> dict[str, Any]:
        """Answers a prompt and waits until the vault has its chunks."""
        before = self.cluster.saved()
        answer = engine.ask(text)
        engine.ask(prompt(9999, 3))  # because a store begins with the step after its own
        self.cluster.wait_saved(before + blocks)
        return answer


@pytest.fixture
def bench(engines: Engines, cluster: Cluster, models: Models) -> Iterator[Bench]:
    found = Bench(engines, cluster, models)
    yield found
    found.end()


def text_of(seed: int) -> list[int]:
    return prompt(seed, BLOCKS * BLOCK + 5)


def test_chunks_come_back_after_the_primary_tier_was_reset_and_in_another_engine(
    bench: Bench,
) -> None:
    engine, text = bench.start(), text_of(8200)
    cold = bench.save(engine, text, BLOCKS)
    assert cold["cached"] == 0
    pages = engine.call("pages", prompt=text)
    assert engine.call("reset_all")
    engine.call("spoil")
    again = engine.ask(text)
    assert again["cached"] == BLOCKS * BLOCK
    assert again["tokens"] == cold["tokens"]
    assert engine.call("pages", prompt=text)[:BLOCKS] == pages[:BLOCKS]
    assert engine.call("offloading")["counters"]["blocks_loaded"] == BLOCKS
    bench.end()
    other = bench.start()
    found = other.ask(text)
    assert (found["cached"], found["tokens"]) == (BLOCKS * BLOCK, cold["tokens"])
    # The comparison must detect a difference: reordered bytes give another answer.
    assert other.call("reset_all")
    other.call("reverse_promotions")
    spoiled = other.ask(text)
    assert spoiled["cached"] == BLOCKS * BLOCK
    assert spoiled["tokens"] != cold["tokens"]
    state = other.call("offloading")
    assert (state["plans"], state["is_busy"]) == (0, False)
    assert state["requests"] <= 1  # vLLM reports the end of the last one with the next step


def test_f82_chunks_of_another_size_or_of_other_weights_are_never_taken(
    bench: Bench, models: Models
) -> None:
    engine, text = bench.start(), text_of(8201)
    bench.save(engine, text, BLOCKS)
    bench.end()
    engine = bench.start(chunk=2 * BLOCK)
    cold = bench.save(engine, text, BLOCKS // 2)
    assert cold["cached"] == 0
    assert engine.call("reset_all")
    again = engine.ask(text)  # the control: its own chunks are found again
    assert (again["cached"], again["tokens"]) == (BLOCKS * BLOCK, cold["tokens"])
    saved = bench.cluster.saved()
    engine.call("change_weights", how="reload", folder=models.path(replace(PLAIN, seed=7)))
    assert engine.call("reset_all")
    other = engine.ask(text)
    assert other["cached"] == 0
    assert other["tokens"] != cold["tokens"]
    engine.ask(text_of(8202))
    counters = engine.call("offloading")["counters"]
    assert counters["turned_off"] == 1
    assert bench.cluster.saved() == saved


def test_f82_a_vault_that_dies_while_it_is_asked_costs_what_it_held_and_no_more(
    bench: Bench,
) -> None:
    engine, text, cluster = bench.start(), text_of(8203), bench.cluster
    cold = bench.save(engine, text, BLOCKS)
    assert engine.call("reset_all")
    cluster.vault.freeze()
    engine.call("begin", prompts={"asked": text})
    engine.call("go_on_until", moment="tier_asked")
    cluster.vault.kill()
    answer = engine.call("finish")["asked"]
    assert (answer["cached"], answer["tokens"]) == (0, cold["tokens"])
    assert engine.ask(text_of(8204))["cached"] == 0
    cluster.vault.start()
    # Earlier records are lost with its memory; new ones are kept again.
    fresh = text_of(8205)
    first = wait_until(lambda: kept(bench, engine, fresh), "it stores again", 60.0)
    assert engine.call("reset_all")
    assert engine.ask(fresh)["tokens"] == first["tokens"]


def kept(bench: Bench, engine: Engine, text: list[int]) -> dict[str, Any] | None:
    """Computes a prompt anew; returns its answer once the vault has all of it."""
    before = bench.cluster.saved()
    assert engine.call("reset_all")
    answer = engine.ask(text)
    engine.ask(prompt(9999, 3))
    bench.cluster.wait_idle()
    return answer if bench.cluster.saved() - before >= BLOCKS else None
