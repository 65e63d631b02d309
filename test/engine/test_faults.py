"""Faults at chosen moments: sidecar absent, hung or killed, vault hung or killed: right tokens, no wait, recovery."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt
from harness.processes import WAIT_S
from tierkv.connectors.vllm import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.engine import Engine, Engines
    from harness.processes import Cluster, Process

BLOCK = 32
BLOCKS = 5
STALL_MS = 500
WAIT_MS = 3000
#: Longest time that any call of ours may block the engine's thread, whatever the sidecar's state.
CALL_MAX_S = 2.0
#: Seconds of a request beside its restore budget, on a machine ten times slower than expected.
SLACK_S = 30.0
_SEEDS = itertools.count(600)


class Bench:
    """An engine with tierKV, one without as the reference, and the cluster to break."""

    def __init__(self, engine: Engine, plain: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.plain = plain
        self.cluster = cluster

    def new_prompt(self) -> list[int]:
        return prompt(next(_SEEDS), BLOCKS * BLOCK + 3)

    def right(self, text: list[int]) -> list[int]:
        answer = self.plain.ask(text)
        return list(answer["tokens"])

    def ask(self, text: list[int]) -> int:
        """Answers a prompt, checks the answer, returns the tokens found in caches."""
        answer = self.engine.ask(text)
        assert answer["tokens"] == self.right(text)
        return int(answer["cached"])

    def empty(self) -> None:
        self.engine.empty()

    def heal(self) -> None:
        """Waits until everything runs and the engine may restore."""
        for process in (self.cluster.vault, self.cluster.sidecar):
            if process.is_running:
                process.thaw()
            else:
                process.start()
        self.engine.wait_up()

    def seed(self) -> list[int]:
        """Returns a prompt with its blocks in the vault and not in the engine."""
        deadline = time.monotonic() + WAIT_S
        while True:  # a save is dropped where a busy machine has not named the engine's blocks yet
            text = self.new_prompt()
            before = self.cluster.saved()
            self.ask(text)
            self.cluster.wait_idle()
            self.empty()
            if self.cluster.saved() >= before + BLOCKS:
                return text
            assert time.monotonic() < deadline, self.cluster.status()

    def counter(self, name: str) -> int:
        return int(self.engine.call("status")["counters"].get(name, 0))

    def check_recovery(self) -> None:
        """Expects a save and restore of a prompt, with everything running again and without help."""
        self.heal()
        deadline = time.monotonic() + WAIT_S
        while True:  # because the sidecar probes a returning vault only now and then
            text = self.new_prompt()
            self.ask(text)
            self.cluster.wait_idle()
            self.empty()
            if self.ask(text) == BLOCKS * BLOCK:
                break
            assert time.monotonic() < deadline, self.cluster.status()
        self.check_tidy()

    def check_tidy(self) -> None:
        assert self.engine.call("reset")
        status = self.engine.call("status")
        assert status["shim"] == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
        assert (status["requests"], status["blocks_in_use"]) == (0, 0)
        assert status["max_s"] < CALL_MAX_S, status

    def begin(self, text: list[int], moment: str, held: Process | None = None) -> None:
        """Begins request `r` and stops at a moment of its life; `held` hangs meanwhile, so that the moment lasts."""
        if held is not None:
            held.freeze()
        self.engine.call("begin", prompts={"r": text})
        self.engine.call("go_on_until", moment=moment)

    def finish(self, text: list[int]) -> int:
        """Ends request `r`: right answer, within the restore budget; returns the tokens found in caches."""
        started = time.monotonic()
        answer = self.engine.call("finish")["r"]
        assert time.monotonic() - started < WAIT_MS / 1000 + SLACK_S
        assert answer["tokens"] == self.right(text)
        return int(answer["cached"])

    def finish_all(self, texts: dict[str, list[int]]) -> None:
        answers = self.engine.call("finish")
        for name, text in texts.items():
            assert answers[name]["tokens"] == self.right(text)

    def dropped(self) -> int:
        """Returns the blocks that were not saved, whoever dropped them."""
        counters = self.engine.call("status")["counters"]
        return sum(count for name, count in counters.items() if name.startswith("dropped_"))


@pytest.fixture(scope="module")
def one_engine(engines: Engines, new_cluster: Callable[..., Cluster], models: Models) -> Bench:
    """Starts the engine before any sidecar."""
    cluster = new_cluster(stall_ms=STALL_MS, wait_ms=WAIT_MS)
    assert cluster.sidecar.stop() == 0
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["max_num_batched_tokens"] = 1024
    block_bytes = PLAIN.layers * PLAIN.kv_heads * BLOCK * 2 * PLAIN.head_dim * 4
    plain = engines.start(vllm=options)
    engine = engines.start(
        vllm={**options, "kv_transfer_config": cluster.transfer_config},
        shim_limits={
            "LOAD_BYTES_PER_STEP_MAX": block_bytes,
            "SILENCE_MAX_S": limits.SILENCE_MAX_S,
        },
    )
    return Bench(engine, plain, cluster)


@pytest.fixture
def bench(one_engine: Bench) -> Iterator[Bench]:
    yield one_engine
    one_engine.heal()
    one_engine.engine.call("finish")
    one_engine.empty()
    one_engine.engine.call("reset_clocks")


def test_without_a_sidecar_at_start_the_engine_runs_and_finds_a_late_one(bench: Bench) -> None:
    text = bench.new_prompt()
    assert bench.ask(text) == 0
    assert bench.ask(text) == BLOCKS * BLOCK  # its own cache
    # Dropped, because no namespace is complete without a sidecar.
    assert bench.counter("dropped_save_no_name") > 0
    bench.check_tidy()
    bench.check_recovery()


@pytest.mark.parametrize("fault", ["freeze", "kill"])
@pytest.mark.parametrize("moment", ["asked", "placed", "loading"])
def test_f18_a_sidecar_that_fails_during_a_restore(bench: Bench, moment: str, fault: str) -> None:
    bench.heal()
    text = bench.seed()
    vault = bench.cluster.vault
    bench.begin(text, moment, held=vault if moment == "asked" else None)
    getattr(bench.cluster.sidecar, fault)()
    vault.thaw()
    if fault == "kill":
        bench.engine.call("go_on_until", moment="down")
    found = bench.finish(text)
    # An admitted load goes on without the sidecar, because its pages are mapped and protected.
    is_restored = moment == "loading" or (moment, fault) == ("placed", "freeze")
    assert found == (BLOCKS * BLOCK if is_restored else 0)
    bench.check_recovery()
    assert bench.ask(text) == BLOCKS * BLOCK  # the vault still has it


def test_f19_while_the_sidecar_hangs_only_the_first_request_waits(bench: Bench) -> None:
    bench.heal()
    texts = [bench.seed() for _ in range(4)]
    bench.cluster.sidecar.freeze()
    assert bench.ask(texts[0]) == 0
    bench.engine.call("reset_clocks")
    started = time.monotonic()
    answers = bench.engine.call("generate", prompts=texts[1:])
    assert time.monotonic() - started < SLACK_S
    assert [answer["cached"] for answer in answers] == [0, 0, 0]
    assert [answer["tokens"] for answer in answers] == [bench.right(text) for text in texts[1:]]
    bench.check_recovery()


def many_prompts() -> dict[str, list[int]]:
    """More blocks than one step computes, and than a worker may have in slots for saves."""
    return {str(number): prompt(next(_SEEDS), 20 * BLOCK) for number in range(6)}


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_a_sidecar_that_fails_during_saves(bench: Bench, fault: str) -> None:
    bench.heal()
    texts = many_prompts()
    before = bench.dropped()
    bench.engine.call("begin", prompts=texts)
    bench.engine.call("go_on_until", moment="saving")
    getattr(bench.cluster.sidecar, fault)()
    bench.finish_all(texts)
    bench.check_recovery()
    dropped = bench.dropped() - before
    if fault == "kill":
        assert dropped > 0
        return
    # A short freeze may cost nothing; each block is saved or counted as dropped.
    held = [bench.ask(text) // BLOCK for text in texts.values()]
    most = [(len(text) - 1) // BLOCK for text in texts.values()]
    assert sum(held) + dropped >= sum(most), (held, dropped)


@pytest.mark.parametrize("fault", ["freeze", "kill"])
@pytest.mark.parametrize("moment", ["asked", "loading"])
def test_f1_a_vault_that_fails_during_a_restore(bench: Bench, moment: str, fault: str) -> None:
    bench.heal()
    text = bench.seed()
    sidecar = bench.cluster.sidecar
    bench.begin(text, moment, held=sidecar if moment == "asked" else None)
    getattr(bench.cluster.vault, fault)()
    sidecar.thaw()
    assert bench.finish(text) == (0 if moment == "asked" else BLOCKS * BLOCK)
    bench.check_recovery()


def test_f1_a_vault_killed_during_saves_loses_them_and_nothing_else(bench: Bench) -> None:
    bench.heal()
    texts = many_prompts()
    bench.cluster.vault.freeze()
    bench.engine.call("begin", prompts=texts)
    bench.engine.call("go_on_until", moment="saving")
    bench.cluster.vault.kill()
    bench.finish_all(texts)
    status = bench.cluster.wait_idle()
    assert sum(n for name, n in status["counters"].items() if name.startswith("dropped_")) > 0
    bench.check_recovery()


def test_a_vault_that_hangs_during_saves_has_them_in_the_end(bench: Bench) -> None:
    bench.heal()
    text, before = bench.new_prompt(), bench.cluster.saved()
    # The look-up is answered, because failed look-ups would mark the vault as down before any save.
    bench.begin(text, "looked_up")
    bench.cluster.vault.freeze()
    assert bench.finish(text) == 0
    assert bench.cluster.saved() == before
    bench.cluster.vault.thaw()
    bench.cluster.wait_saved(before + BLOCKS)
    bench.check_recovery()
