"""One engine computes a prompt, another answers it: handed-over blocks are restored, lost ones are computed."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import LLAMA_8B, PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster
    from lab.checkpoint import Spec

    Start = Callable[..., Engine]

BLOCK = 32
BLOCKS = 20
TOKENS = BLOCKS * BLOCK + 5
WAIT_MS = 60_000
STALL_MS = 5_000


@pytest.fixture(scope="module")
def producers(new_cluster: Callable[..., Cluster]) -> Cluster:
    """A vault, and the sidecar of the computing engine."""
    return new_cluster()


@pytest.fixture(scope="module")
def consumers(new_cluster: Callable[..., Cluster], producers: Cluster) -> Cluster:
    """The sidecar of the answering engine, on the same vault."""
    return new_cluster(beside=producers, wait_ms=WAIT_MS, stall_ms=STALL_MS, when="faster")


@pytest.fixture(scope="module")
def start(engines: Engines, models: Models) -> Start:
    def start(cluster: Cluster | None, role: str, spec: Spec = PLAIN, **changes: Any) -> Engine:
        vllm = {"model": models.path(spec), "dtype": spec.dtype, "block_size": BLOCK, **changes}
        if cluster is None:
            return engines.start(vllm=vllm)
        vllm["kv_transfer_config"] = {**cluster.transfer_config, "kv_role": role}
        return engines.start(vllm=vllm).wait_up()

    return start


@pytest.fixture(scope="module")
def alone(start: Start) -> Engine:
    """An engine without a connector, as the reference for the others' tokens."""
    return start(None, "")


@pytest.fixture(scope="module")
def consumer(start: Start, consumers: Cluster) -> Engine:
    return start(consumers, "kv_consumer")


def shim(engine: Engine) -> dict[str, int]:
    return dict(engine.call("status")["counters"])


def test_a_consumer_restores_what_a_producer_computed(
    start: Start, alone: Engine, consumer: Engine, producers: Cluster, consumers: Cluster
) -> None:
    text = prompt(1000, TOKENS)
    producer = start(producers, "kv_producer")
    told = producer.ask(text, max_tokens=1)["transfer"]
    assert told["tierkv"]["handoff"]["tokens"] == BLOCKS * BLOCK
    # The router passes the parameters on unchanged.
    restored = consumer.ask(text, transfer=told)
    assert restored["cached"] == BLOCKS * BLOCK
    assert restored["transfer"] is None
    assert restored["tokens"] == alone.ask(text)["tokens"]
    assert consumer.call("pages", prompt=text) == producer.call("pages", prompt=text)
    counters = consumers.counters()
    assert (counters["handoffs"], counters["handoffs_late"]) == (1, 0)
    assert counters["blocks_restored_vault"] == BLOCKS
    assert counters["decided_loaded_handed_over"] == 1
    # The answering engine saves nothing, and the computing one restores nothing.
    assert counters["blocks_saved"] + counters["saves_present"] == 0
    assert producer.call("reset")
    assert producer.ask(text, max_tokens=1)["cached"] == 0
    assert producers.counters()["prefetch_requests"] == 0
    assert shim(producer)["handoffs_told"] == 1  # the step after a reset saves nothing
    assert shim(consumer)["handoffs_taken"] == 1


def test_f76_a_producer_killed_before_its_blocks_are_there_costs_a_bounded_wait(
    start: Start, alone: Engine, consumer: Engine, producers: Cluster, consumers: Cluster
) -> None:
    text = prompt(1001, TOKENS)
    producer = start(producers, "kv_producer")
    before = consumers.counters()
    producers.sidecar.freeze()  # its computed blocks never leave
    told = producer.ask(text, max_tokens=1)["transfer"]
    answers: list[tuple[dict[str, Any], float]] = []

    def answer() -> None:
        began_s = time.monotonic()
        found = consumer.ask(text, transfer=told)
        answers.append((found, time.monotonic() - began_s))

    asking = threading.Thread(target=answer)
    asking.start()
    consumers.wait_count("lookup_keys", before["lookup_keys"] + 2 * BLOCKS)  # until it waits
    os.kill(producer.pid, signal.SIGKILL)
    producers.sidecar.kill()
    asking.join()
    ((computed, took_s),) = answers
    assert computed["cached"] == 0
    assert took_s < WAIT_MS / 1000, "the stall ends the wait, not the budget"
    assert computed["tokens"] == alone.ask(text)["tokens"]
    assert consumers.counters()["handoffs_late"] == before["handoffs_late"] + 1
    producers.sidecar.start()


@pytest.mark.parametrize("wrong", ["key", "prompt", "form"])
def test_f77_a_handoff_that_is_not_its_own_is_counted_and_computed(
    wrong: str, alone: Engine, consumer: Engine, consumers: Cluster
) -> None:
    text = prompt(1010 + len(wrong), TOKENS)
    said: Any = {"tokens": BLOCKS * BLOCK, "key": "0" * 32}
    if wrong == "form":
        said = {"tokens": -1, "blocks": [1, 2]}
    if wrong == "prompt":
        said["tokens"] = 1 << 40
    before, sidecar = shim(consumer), consumers.counters()
    answer = consumer.ask(text, transfer={"tierkv": {"handoff": said}})
    assert answer["cached"] == 0
    assert answer["tokens"] == alone.ask(text)["tokens"]
    name = "wishes_ignored" if wrong == "form" else "handoffs_foreign"
    assert shim(consumer)[name] == before.get(name, 0) + 1
    assert consumers.counters()["handoffs"] == sidecar["handoffs"]


@pytest.mark.nightly
def test_most_of_a_long_prompt_is_there_before_it_is_computed(
    start: Start, producers: Cluster, record_property: Callable[[str, object], None]
) -> None:
    """Blocks leave with each chunk, while the next ones are computed."""
    chunk, blocks = 128, 48
    producer = start(
        producers,
        "kv_producer",
        spec=LLAMA_8B,
        max_model_len=2048,
        max_num_batched_tokens=chunk,
        num_gpu_blocks_override=80,
        kv_cache_memory_bytes=1 << 30,
    )
    shares = []
    for seed in range(1020, 1023):
        before = producers.counters()["bytes_saved"]
        first = producers.saved()
        told = producer.ask(prompt(seed, blocks * BLOCK + 5), max_tokens=1)["transfer"]
        at_end = producers.counters()["bytes_saved"] - before
        assert told["tierkv"]["handoff"]["tokens"] == blocks * BLOCK
        producers.wait_saved(first + blocks)
        shares.append(at_end / (producers.counters()["bytes_saved"] - before))
    record_property("share_before_prefill_ends", shares)
    print(f"\nshare of bytes there when the prefill ends: {[round(share, 2) for share in shares]}")
    assert max(shares) >= 0.8
