"""Restores in one engine through a fault proxy: amounts, misses, and causes of a wrong answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.leftovers import check_nothing_left
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
#: Bound on 99 of 100 calls: 10 ms on the engine's thread, times ten for a slow machine.
P99_MAX_S = 0.1

Answer = dict[str, Any]


class Bench:
    """The engine, its cluster, and common steps of the tests."""

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        self.engine = engine
        self.cluster = cluster

    def ask(self, text: list[int], **options: Any) -> Answer:
        return self.engine.ask(text, **options)

    def seed(self, text: list[int], **options: Any) -> Answer:
        """Puts a prompt's blocks into the vault; returns the engine's own hit and empties its cache."""
        before = self.cluster.saved()
        blocks = (len(text) + len(self.ask(text, **options)["tokens"]) - 1) // BLOCK
        # Short answers end before the weights are read after a reset; served engines step on by themselves.
        self.engine.call("go_on_until", moment="saved")
        self.cluster.wait_saved(before + blocks)
        own_hit = self.ask(text, **options)
        self.empty()
        return own_hit

    def empty(self) -> None:
        self.engine.empty()

    def found(self, answer: Answer, blocks: int) -> None:
        """Expects exactly so many blocks of the answer's prompt from caches."""
        if answer["cached"] != blocks * BLOCK:
            counts = {"shim": self.engine.call("status"), "sidecar": self.cluster.counters()}
            pytest.fail(f"{answer['cached']} tokens cached, not {blocks} blocks: {counts}")

    def restored(self) -> int:
        """Returns the tokens restored so far."""
        return int(self.engine.call("status")["counters"].get("tokens_restored", 0))

    def faults(self, **faults: Any) -> None:
        assert self.cluster.proxy is not None
        self.cluster.proxy.set_faults(**faults)

    def fault_counts(self) -> dict[str, int]:
        assert self.cluster.proxy is not None
        return dict(self.cluster.proxy.ask("counts")["counts"])


@pytest.fixture(scope="module")
def one_engine(engines: Engines, new_cluster: Callable[..., Cluster], models: Models) -> Bench:
    cluster = new_cluster(with_proxy=True)
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    engine = engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config})
    return Bench(engine.wait_up(), cluster)


@pytest.fixture
def bench(one_engine: Bench) -> Bench:
    one_engine.empty()
    one_engine.faults()
    return one_engine


def same(ours: Answer, theirs: Answer) -> None:
    assert ours["tokens"] == theirs["tokens"]
    assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-5)


@pytest.mark.parametrize(
    ("tokens", "cached"),
    [(BLOCK - 1, 0), (BLOCK, 0), (BLOCK + 1, 1), (4 * BLOCK, 3), (4 * BLOCK + 1, 4)],
)
def test_a_prompt_is_restored_up_to_its_last_token(bench: Bench, tokens: int, cached: int) -> None:
    text = prompt(100 + tokens, tokens)
    own_hit = bench.seed(text)
    again = bench.ask(text)
    bench.found(own_hit, cached)
    bench.found(again, cached)
    same(again, own_hit)


def test_a_cold_tail_is_restored_behind_a_hot_system_prompt(bench: Bench) -> None:
    system, tail = prompt(200, 3 * BLOCK), prompt(201, 3 * BLOCK + 7)
    own_hit = bench.seed(system + tail)
    bench.ask(system + prompt(202, 5))
    hot = bench.engine.call("pages", prompt=system)
    before = bench.restored()
    again = bench.ask(system + tail)
    bench.found(again, 6)
    assert bench.restored() - before == 3 * BLOCK
    same(again, own_hit)
    assert bench.engine.call("pages", prompt=system) == hot


def test_a_local_hit_that_grew_since_arrival_is_not_loaded_over(bench: Bench) -> None:
    system, tail = prompt(205, 3 * BLOCK), prompt(206, 3 * BLOCK + 7)
    own_hit = bench.seed(system + tail)
    before = bench.restored()
    bench.cluster.sidecar.freeze()
    bench.engine.call("begin", prompts={"r": system + tail})  # asks for all six blocks
    # This request reads no cache: it computes the system prompt while the other waits.
    other = {"other": system + prompt(207, 5)}
    bench.engine.call("begin", prompts=other, prompt_logprobs=0)
    bench.engine.call("go_on_until", moment="running")
    bench.cluster.sidecar.thaw()
    answer = bench.engine.call("finish")["r"]
    bench.found(answer, 6)
    assert bench.restored() - before == 3 * BLOCK
    assert answer["tokens"] == own_hit["tokens"]


def test_only_the_shared_part_of_a_prompt_is_restored(bench: Bench) -> None:
    system = prompt(210, 2 * BLOCK)
    bench.seed(system + prompt(211, 2 * BLOCK))
    other = system + prompt(212, 2 * BLOCK)
    again = bench.ask(other)
    bench.found(again, 2)
    bench.empty()
    same(bench.ask(other), again)


@pytest.mark.parametrize("answer", [BLOCK, BLOCK + 1, BLOCK + 2])
def test_the_next_turn_restores_what_the_last_turn_said(bench: Bench, answer: int) -> None:
    """The last token of an answer is sampled, never computed, so a block that it fills is not saved."""
    text = prompt(220 + answer, 3 * BLOCK)
    said = bench.seed(text, max_tokens=answer)["tokens"]
    blocks = (len(text) + answer - 1) // BLOCK
    turn = text + said + prompt(220, 3)
    again = bench.ask(turn)
    bench.found(again, blocks)
    own_hit = bench.ask(turn)
    assert own_hit["tokens"] == again["tokens"]


def test_prompts_of_different_salt_never_share_a_block(bench: Bench) -> None:
    text = prompt(225, 3 * BLOCK + 3)
    own_hit = bench.seed(text, salt="one")
    bench.found(bench.ask(text), 0)
    bench.found(bench.ask(text, salt="two"), 0)
    bench.empty()
    again = bench.ask(text, salt="one")
    bench.found(again, 3)
    same(again, own_hit)


def test_a_request_for_prompt_logprobs_takes_nothing_from_outside(bench: Bench) -> None:
    text = prompt(230, 4 * BLOCK + 3)
    own_hit = bench.seed(text)
    before = bench.restored()
    again = bench.ask(text, prompt_logprobs=0)
    assert (again["cached"], bench.restored() - before) == (0, 0)
    assert again["tokens"] == own_hit["tokens"]


def test_a_preempted_request_is_restored_again(bench: Bench) -> None:
    text = prompt(240, 5 * BLOCK + 3)
    own_hit = bench.seed(text, max_tokens=24)
    before = bench.restored()
    bench.engine.call("begin", prompts={"r": text}, max_tokens=24)
    bench.engine.call("go_on_until", moment="running")
    assert bench.restored() - before == 5 * BLOCK
    bench.engine.call("preempt_all")
    bench.engine.call("spoil")
    answer = bench.engine.call("finish")["r"]
    assert bench.restored() - before >= 10 * BLOCK
    assert answer["tokens"] == own_hit["tokens"]


def test_one_flipped_bit_in_a_page_changes_the_answer(bench: Bench) -> None:
    """The negative control: the comparison above can fail."""
    text = prompt(250, 4 * BLOCK + 3)
    own_hit = bench.seed(text)
    bench.ask(text)
    good = bench.engine.call("pages", prompt=text)
    bench.empty()
    # The top byte of a float32 of V: sign and exponent.
    bench.engine.call("flip_loaded_byte", block=1, layer=0, byte=64 * 4 + 3)
    again = bench.ask(text)
    bad = bench.engine.call("pages", prompt=text)
    bench.found(again, 4)
    assert [a == b for a, b in zip(bad, good, strict=True)] == [True, False, True, True]
    assert again["logprobs"] != pytest.approx(own_hit["logprobs"], abs=1e-5)
    bench.empty()
    same(bench.ask(text), own_hit)


def test_a_record_damaged_on_its_way_back_is_refused_counted_and_recomputed(bench: Bench) -> None:
    text = prompt(260, 4 * BLOCK + 3)
    own_hit = bench.seed(text)
    before = bench.cluster.counters()
    bench.faults(direction="fetch", corruptAt=1)
    again = bench.ask(text)
    assert bench.fault_counts()["corrupted"] == 1
    assert bench.cluster.counters()["bad_records"] == before["bad_records"] + 1
    assert again["cached"] < 4 * BLOCK
    assert again["tokens"] == own_hit["tokens"]
    bench.empty()
    bench.faults()
    healed = bench.ask(text)
    bench.found(healed, 4)  # the vault's own copy was good and stays
    same(healed, own_hit)


def test_a_record_damaged_on_its_way_out_is_never_held(bench: Bench) -> None:
    text = prompt(270, 4 * BLOCK + 3)
    bench.faults(direction="store", corruptEvery=1)
    cold = bench.ask(text)
    bench.cluster.wait_idle()
    assert bench.fault_counts()["corrupted"] >= 1
    bench.faults()
    bench.empty()
    again = bench.ask(text)
    assert again["cached"] < 4 * BLOCK
    assert again["tokens"] == cold["tokens"]


def test_nothing_is_left_and_no_call_took_long(bench: Bench) -> None:
    status = check_nothing_left(bench.engine, bench.cluster)
    assert status["copied_bytes"] > 0
    assert status["calls"] > 100
    assert status["p99_s"] < P99_MAX_S
