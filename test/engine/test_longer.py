"""An engine with blocks of 128 tokens computes a prompt, one with blocks of 32 answers it from cut records."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

LONG, SHORT = 128, 32
TOKENS = 5 * LONG
#: Tokens beyond the cut blocks are computed, as the last token always is.
PROMPT = TOKENS + SHORT + 5


@pytest.fixture(scope="module")
def region() -> Iterator[Path]:
    path = Path(f"/dev/shm/tierkv-longer-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def start(engines: Engines, models: Models) -> Callable[..., Engine]:
    def start(cluster: Cluster | None, role: str = "", block: int = SHORT, **of: Any) -> Engine:
        model = models.path(of.get("spec", PLAIN))
        vllm = {"model": model, "dtype": PLAIN.dtype, "block_size": block}
        if cluster is None:
            return engines.start(vllm=vllm)
        vllm["kv_transfer_config"] = {**cluster.transfer_config, "kv_role": role}
        return engines.start(vllm=vllm).wait_up()

    return start


def shim(engine: Engine, name: str) -> int:
    return int(engine.call("status")["counters"].get(name, 0))


def test_a_prompt_computed_in_longer_blocks_is_cut_and_no_other_is(
    start: Callable[..., Engine], new_cluster: Callable[..., Cluster], region: Path
) -> None:
    producers, consumers = (new_cluster(region=region, wait_ms=60_000) for _ in range(2))
    alone = start(None)
    producer, consumer = start(producers, "kv_producer", LONG), start(consumers, "kv_consumer")
    text, other = prompt(1100, PROMPT), prompt(1101, PROMPT)
    told = producer.ask(text, max_tokens=1)["transfer"]
    said = told["tierkv"]["handoff"]
    assert (said["tokens"], said["block_tokens"]) == (TOKENS, LONG)
    # Parameters of another prompt, and of another tenant's.
    for wrong in ({"text": other}, {"text": text, "salt": "another tenant"}):
        foreign = shim(consumer, "handoffs_foreign")
        asked = {**wrong, "transfer": told}
        computed = consumer.ask(asked.pop("text"), **asked)
        assert computed["cached"] == 0
        assert shim(consumer, "handoffs_foreign") == foreign + 1
    restored = consumer.ask(text, transfer=told)
    assert restored["cached"] == TOKENS
    assert restored["tokens"] == alone.ask(text)["tokens"]
    assert shim(consumer, "handoffs_longer") == 1
    counters = consumers.counters()
    assert (counters["handoffs"], counters["handoffs_late"]) == (1, 0)
    assert counters["handoff_records_cut"] == TOKENS // LONG
    assert counters["blocks_restored_shared"] == TOKENS // SHORT


@pytest.mark.nightly
def test_through_a_vault_and_only_for_a_consumer_of_the_same_model(
    start: Callable[..., Engine], new_cluster: Callable[..., Cluster]
) -> None:
    producers = new_cluster()
    consumers = new_cluster(beside=producers, wait_ms=60_000, when="faster")
    producer, alone = start(producers, "kv_producer", LONG), start(None)
    text = prompt(1110, PROMPT)
    told = producer.ask(text, max_tokens=1)["transfer"]
    answer = alone.ask(text)["tokens"]
    engine = start(consumers, "kv_consumer")
    restored = engine.ask(text, transfer=told)
    assert (restored["cached"], restored["tokens"]) == (TOKENS, answer)
    assert consumers.counters()["blocks_restored_vault"] == TOKENS // SHORT
    # The last engine saves the prompt in its own blocks.
    for role, spec in (("kv_consumer", replace(PLAIN, seed=PLAIN.seed + 1)), ("kv_both", PLAIN)):
        engine = start(consumers, role, spec=spec)
        computed = engine.ask(text, transfer=told)
        assert computed["cached"] == 0
        assert (computed["tokens"] == answer) == (spec is PLAIN)
        assert shim(engine, "handoffs_foreign") == 1
