"""kill -9 of a real engine while it saves and loads: other engines find right blocks, and nothing stays held."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from typing import TYPE_CHECKING, Any

from harness.engine import EngineError
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 12
#: Kills in a run of the tests; the long run asks for more.
KILLS = int(os.environ.get("TIERKV_TEST_ENGINE_KILLS", "2"))
SEED = int(os.environ.get("TIERKV_TEST_SEED", "20261122"))
#: Latest kill after the engine's second batch, during which a load, a step or a save is always open.
KILL_AFTER_MAX_S = 0.6
#: Prompts of earlier engines for each new one, beside as many new prompts.
EACH = 3


class Ledger:
    """Every answer that an engine gave before it was killed, kept apart from all engines."""

    def __init__(self) -> None:
        self.rng = random.Random(SEED)
        self.prompts: list[list[int]] = []
        self.answers: list[tuple[list[int], list[int]]] = []
        self.restored = 0

    def batch(self) -> list[list[int]]:
        old = self.rng.sample(self.prompts, min(EACH, len(self.prompts)))
        new = [prompt(7000 + len(self.prompts) + n, BLOCKS * BLOCK + 3) for n in range(EACH)]
        self.prompts += new
        return old + new

    def note(self, texts: list[list[int]], answers: list[dict[str, Any]]) -> None:
        for text, answer in zip(texts, answers, strict=True):
            self.answers.append((text, answer["tokens"]))
            self.restored += answer["cached"]


def work_until_killed(engine: Engine, ledger: Ledger, cluster: Cluster) -> None:
    texts = ledger.batch()
    ledger.note(texts, engine.call("generate", prompts=texts))
    cluster.wait_saved(1)  # because a slow machine would otherwise prove nothing
    delay_s = ledger.rng.uniform(0, KILL_AFTER_MAX_S)
    killer = threading.Timer(delay_s, os.kill, (engine.pid, signal.SIGKILL))
    killer.start()
    try:
        while True:
            # Each batch begins with an empty engine cache.
            engine.call("reset")
            engine.call("spoil")
            texts = ledger.batch()
            ledger.note(texts, engine.call("generate", prompts=texts))
    except (EngineError, OSError):
        killer.join()


def test_f20_engines_that_are_killed_leave_right_blocks_and_hold_nothing(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    shared = {**options, "kv_transfer_config": cluster.transfer_config}
    ledger = Ledger()
    for _ in range(KILLS):
        engine = engines.start(vllm=shared).wait_up()
        work_until_killed(engine, ledger, cluster)
        wait_until(lambda: not cluster.status()["engines"], "the sidecar to let go of the engine")
    assert len(ledger.prompts) >= KILLS * EACH
    assert cluster.vault.is_running and cluster.sidecar.is_running

    # A surviving engine asks for everything, with an engine without a connector as the reference.
    plain, last = engines.start(vllm=options), engines.start(vllm=shared).wait_up()
    for text in ledger.prompts:
        answer = last.ask(text)
        ledger.note([text], [answer])
    right: dict[tuple[int, ...], list[int]] = {}
    for text in ledger.prompts:
        answer = plain.ask(text)
        right[tuple(text)] = answer["tokens"]
    assert [got for _, got in ledger.answers] == [right[tuple(text)] for text, _ in ledger.answers]
    assert ledger.restored > 0, "somebody was given what a killed engine had saved"

    (held,) = cluster.wait_idle()["engines"]
    arena = held["arena"]
    assert arena["freeSlots"] + arena["leasedSlots"] == arena["slotCount"]
    counters = cluster.counters()
    assert counters.get("bad_records", 0) == 0, counters
    counts = {"engineKills": KILLS, "answers": len(ledger.answers), "restored": ledger.restored}
    print(f"engine kills {json.dumps(counts)}")
