"""A real engine before a Valkey cluster with faults: no wrong token, no failed request, what is lost comes again."""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until
from harness.valkeys import FREEZE, THAW, Node, Side, Valkeys, valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.engine import Engine, Engines

BLOCK, BLOCKS, TEXTS, NODES = 32, 20, 6, 3
WAIT_MS, STALL_MS = 3_000, 500
#: Reads of blocks while a fault is there; ten thousand in the long form.
READS = 10_000 if os.environ.get("TIERKV_TEST_LONG") else 1_200
SEED = int(os.environ.get("TIERKV_TEST_SEED", "1"))
PROGRAM = valkey()

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        PROGRAM is None, reason="there is no valkey-server; TIERKV_TEST_VALKEY names it"
    ),
]


class Scene:
    """An engine with a sidecar before a cluster, and one without tierKV, which gives the right answers."""

    def __init__(self, engine: Engine, plain: Engine, side: Side, valkeys: Valkeys) -> None:
        self.engine, self.side, self.valkeys = engine, side, valkeys
        self._plain = plain
        self._draw = random.Random(SEED)
        self._seeds = itertools.count(900)
        self._stored: list[list[int]] = []
        #: Blocks that came back while a fault was there.
        self.found = 0

    def node(self) -> Node:
        return self._draw.choice(self.valkeys.nodes)

    def seed(self) -> None:
        """Put new prompts into the cluster. The sidecar keeps no copy of what it saves."""
        before = self.side.saved()
        for _ in range(TEXTS):
            self._stored.append(prompt(next(self._seeds), BLOCKS * BLOCK + 3))
            self._ask(self._stored[-1])
        self.side.wait_saved(before + TEXTS * BLOCKS)
        self.engine.empty()

    def _ask(self, text: list[int]) -> int:
        """Ask a prompt, check its answer, and return the blocks that came from a cache."""
        answer = self.engine.ask(text)
        assert answer["tokens"] == self._plain.ask(text)["tokens"]
        return int(answer["cached"]) // BLOCK

    def ask_stored(self) -> int:
        """Ask all prompts that are stored, each for the first time since; return the blocks that came back."""
        found = sum(self._ask(text) for text in self._stored)
        self._stored.clear()
        self.engine.empty()
        return found

    def faulted(self) -> None:
        self.found += self.ask_stored()

    def ask_during(self, fault: Callable[[], object]) -> None:
        """Ask a stored prompt, and cause the fault when it is looked up."""
        text = self._stored.pop()
        self.engine.call("begin", prompts={"r": text})
        self.engine.call("go_on_until", moment="asked")
        fault()
        answer = self.engine.call("finish")["r"]
        assert answer["tokens"] == self._plain.ask(text)["tokens"]
        self.found += answer["cached"] // BLOCK
        self.engine.empty()

    def heals(self) -> None:
        """Wait until prompts are saved and come back whole."""
        self.valkeys.wait_whole()

        def is_whole() -> bool:
            text = prompt(next(self._seeds), BLOCKS * BLOCK + 3)
            self._ask(text)
            self.side.wait_idle()
            self.engine.empty()
            return self._ask(text) == BLOCKS

        wait_until(is_whole, "a prompt comes back whole")
        self.engine.empty()


@pytest.fixture
def scene(folder: Path, tmp_path: Path, engines: Engines, models: Models) -> Iterator[Scene]:
    assert PROGRAM is not None
    valkeys = Valkeys(PROGRAM, tmp_path, NODES)
    side = Side(tmp_path, valkeys.address, wait_ms=WAIT_MS, stall_ms=STALL_MS)
    try:
        valkeys.start()
        side.start()
        options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
        plain = engines.start(vllm=options)
        options["kv_transfer_config"] = side.transfer_config
        with engines.start(vllm=options).wait_up() as engine:
            yield Scene(engine, plain, side, valkeys)
    finally:
        side.end()
        valkeys.end()


def freeze(scene: Scene) -> None:
    node = scene.node()
    scene.ask_during(lambda: node.signal(FREEZE))
    scene.faulted()
    node.signal(THAW)


def die(scene: Scene) -> None:
    node = scene.node()
    scene.ask_during(node.kill)
    scene.faulted()
    node.start()


def fill(scene: Scene) -> None:
    """Memory is full: some records are gone, and no new ones are taken."""
    node = scene.node()
    node.ask("CONFIG", "SET", "maxmemory", "1")
    node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    node.ask("FLUSHALL")
    scene.faulted()
    node.ask("CONFIG", "SET", "maxmemory", "0")


def lose(scene: Scene) -> None:
    """A node has evicted everything, in the middle of prompts."""
    node = scene.node()
    scene.ask_during(lambda: node.ask("FLUSHALL"))
    scene.faulted()


def restart(scene: Scene) -> None:
    for node in scene.valkeys.nodes:
        node.kill()
    scene.faulted()
    for node in scene.valkeys.nodes:
        node.start()


FAULTS = (freeze, die, fill, lose, restart)


def test_f196_faults_of_a_cluster_change_no_token(scene: Scene) -> None:
    print(f"TIERKV_TEST_SEED={SEED}")
    scene.heals()
    scene.seed()
    assert scene.ask_stored() == TEXTS * BLOCKS, "without a fault all comes back"
    reads = 0
    while reads < READS:
        for fault in FAULTS:
            scene.seed()
            fault(scene)
            reads += TEXTS * BLOCKS
            scene.heals()
    status = scene.engine.call("status")
    assert status["shim"] == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
    assert 0 < scene.found < reads
    print(f"{reads} reads under faults, {scene.found} brought their block")
