"""Weights that change while an engine runs: nothing old is restored, and no other engine gets their results."""

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
BLOCKS = 4
#: Both engines have computed it with the weights on disk.
TEXT = prompt(900, BLOCKS * BLOCK + 3)
OTHER = replace(PLAIN, seed=2)


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


class Pair:
    """An engine with changing weights, one beside it with the weights on disk, and the answers of pure weights."""

    def __init__(self, engines: Engines, cluster: Cluster, models: Models) -> None:
        self.cluster = cluster
        self.folders = [models.path(PLAIN), models.path(OTHER)]
        options = {"dtype": PLAIN.dtype, "block_size": BLOCK, "model": self.folders[0]}
        options["kv_transfer_config"] = cluster.transfer_config
        changing = {"weight_transfer_config": {"backend": "files"}}
        self.changed = engines.start(vllm={**options, **changing}).wait_up()
        self.beside = engines.start(vllm=options).wait_up()
        del options["kv_transfer_config"]
        self.pure = engines.start(vllm={**options, "model": self.folders[1]})
        self.weights = 0
        #: Answer of the weights on disk; its blocks are in the vault.
        self.before = self.changed.ask(TEXT)["tokens"]
        cluster.wait_saved(BLOCKS)

    def ask_emptied(self, engine: Engine, text: list[int]) -> dict[str, Any]:
        """Answers with an empty cache and overwritten pages."""
        engine.empty()
        return engine.ask(text)

    def right(self, text: list[int]) -> list[int]:
        """Returns the answer of `changed`'s present weights, computed by an engine that never had others."""
        engine = (self.beside, self.pure)[self.weights]
        return list(self.ask_emptied(engine, text)["tokens"])

    def names(self) -> dict[str, str]:
        return {engine["id"]: engine["namespace"] for engine in self.cluster.status()["engines"]}

    def change(self, how: str) -> None:
        self.weights = 1 - self.weights
        self.changed.call("change_weights", how=how, folder=self.folders[self.weights])

    def check_new_generation(self, seed: int) -> None:
        """Expects nothing old to come back, and new saves to come back here and nowhere else."""
        fresh = prompt(seed, BLOCKS * BLOCK + 3)
        assert len(set(self.names().values())) <= 2
        before = self.cluster.saved()
        for text in (TEXT, fresh):
            answer = self.changed.ask(text)
            assert answer["cached"] == 0
            assert answer["tokens"] == self.right(text)
        self.cluster.wait_saved(before + 2 * BLOCKS)
        again = self.ask_emptied(self.changed, TEXT)
        assert (again["cached"], again["tokens"]) == (BLOCKS * BLOCK, self.right(TEXT))
        unseen = prompt(seed + 1, BLOCKS * BLOCK + 3)
        cold = self.changed.ask(unseen)
        assert cold["cached"] == 0
        assert self.ask_emptied(self.beside, unseen)["cached"] == 0
        old = self.ask_emptied(self.beside, TEXT)
        assert (old["cached"], old["tokens"]) == (BLOCKS * BLOCK, self.before)
        assert len(set(self.names().values())) == 2


@pytest.fixture(scope="module")
def pair(engines: Engines, cluster: Cluster, models: Models) -> Pair:
    return Pair(engines, cluster, models)


def test_f48_a_sleep_that_keeps_the_weights_keeps_what_is_stored(pair: Pair) -> None:
    """vLLM's CPU worker accepts the call and frees no memory; caches and messages are the same."""
    assert pair.ask_emptied(pair.beside, TEXT)["cached"] == BLOCKS * BLOCK
    names = pair.names()
    pair.changed.call("sleep", level=1)
    answer = pair.changed.ask(TEXT)
    assert (answer["cached"], answer["tokens"]) == (BLOCKS * BLOCK, pair.before)
    assert pair.names() == names


def test_f48_a_reset_that_left_the_weights_keeps_what_is_stored(pair: Pair) -> None:
    """What `/pause` does with its defaults: all caches are emptied, no weight changes."""
    names = pair.names()
    assert pair.changed.call("reset_all")
    answer = pair.changed.ask(TEXT)
    assert (answer["cached"], answer["tokens"]) == (BLOCKS * BLOCK, pair.before)
    assert pair.names() == names


@pytest.mark.parametrize(
    ("how", "reset"), [("reload", "reset_all"), ("update", "reset"), ("load", "reset_all")]
)
def test_f48_weights_replaced_in_place_begin_a_new_generation(
    how: str, reset: str, pair: Pair
) -> None:
    before = pair.cluster.saved()
    pair.change(how)
    # Until the engine's own cache is emptied, new blocks depend on old ones, so nothing is saved or restored.
    mixed = prompt(910, BLOCKS * BLOCK + 3)
    assert pair.changed.ask(mixed)["cached"] == 0
    assert pair.changed.call(reset)
    assert pair.cluster.wait_idle()["counters"]["blocks_saved"] <= before
    pair.check_new_generation({"reload": 920, "update": 930, "load": 940}[how])


def test_f48_a_sleep_that_throws_weights_away_returns_nothing_old(pair: Pair) -> None:
    pair.changed.call("sleep", level=2)
    pair.check_new_generation(950)
