"""A real engine before a Valkey cluster that has faults: no wrong token, no failed request, and what was lost is saved again."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt
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
    """An engine with a sidecar before a cluster, and what another engine without tierKV answers."""

    def __init__(self, engine: Engine, plain: Engine, side: Side, valkeys: Valkeys) -> None:
        self.engine, self.side, self.valkeys = engine, side, valkeys
        self._texts = [prompt(900 + number, BLOCKS * BLOCK + 3) for number in range(TEXTS)]
        self._right = [plain.ask(text)["tokens"] for text in self._texts]
        self._draw = random.Random(SEED)
        self.found = 0

    def node(self) -> Node:
        return self._draw.choice(self.valkeys.nodes)

    def ask_all(self) -> list[int]:
        """Ask every prompt with an empty cache; return the tokens that came from tierKV."""
        cached = []
        for text, right in zip(self._texts, self._right, strict=True):
            self.engine.empty()
            answer = self.engine.ask(text)
            assert answer["tokens"] == right
            cached.append(answer["cached"])
        return cached

    def faulted(self) -> None:
        """Ask while a fault is there."""
        self.found += sum(self.ask_all()) // BLOCK

    def ask_during(self, fault: Callable[[], object]) -> None:
        """Ask one prompt, and cause the fault when it is looked up."""
        self.engine.empty()
        self.engine.call("begin", prompts={"r": self._texts[0]})
        self.engine.call("go_on_until", moment="asked")
        fault()
        assert self.engine.call("finish")["r"]["tokens"] == self._right[0]

    def heals(self) -> None:
        """Ask until all of each prompt comes back: what was lost is computed and saved again."""
        for _ in range(100):
            self.side.wait_idle()
            if self.ask_all() == [BLOCKS * BLOCK] * TEXTS:
                return
        raise AssertionError(f"not all comes back: {self.side.status()}")


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
    reads = 0
    while reads < READS:
        for fault in FAULTS:
            fault(scene)
            reads += TEXTS * BLOCKS
            scene.valkeys.wait_whole()
            scene.heals()
    status = scene.engine.call("status")
    assert status["shim"] == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
    assert 0 < scene.found < reads
    print(f"{reads} reads under faults, {scene.found} brought their block")
