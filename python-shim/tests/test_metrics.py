"""vLLM's own metrics: counts add up over ranks and intervals, each is reported once, and Prometheus shows them."""

import json
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.connector import TierKVConnector
from tierkv.connectors.vllm.engine.metrics import (
    METRIC,
    RESTORE_METRIC,
    TierKVPromMetrics,
    TierKVStats,
)
from tierkv.connectors.vllm.link.counters import Counters, Durations
from tierkv.connectors.vllm.plugin import register
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from .support.engine import vllm_config


def test_counts_of_two_ranks_add_up_and_start_anew() -> None:
    one = TierKVStats.of({"a": 1, "b": 2}, {"host": [0.25]})
    two = TierKVStats.of({"b": 3}, {"host": [0.75], "vault": [2.0]})
    both = one.aggregate(two)
    assert both.reduce() == {"a": 1, "b": 5, "restore_ms_host": 500.0, "restore_ms_vault": 2000.0}
    assert not both.is_empty()
    both.reset()
    assert both.is_empty()


def test_what_travelled_between_processes_becomes_stats_again() -> None:
    sent = TierKVStats.of({"a": 1}, {"vault": [0.5]}).data
    received = TierKVConnector.build_kv_connector_stats(json.loads(json.dumps(sent)))
    assert received.reduce() == {"a": 1, "restore_ms_vault": 500.0}
    assert TierKVConnector.build_kv_connector_stats().is_empty()


def test_the_sidecar_and_vllm_each_hear_of_every_count_once() -> None:
    counters = Counters()
    counters.add("a", 2)
    assert counters.take_changes() == {"a": 2}
    counters.add("a")
    assert counters.take_changes("vllm") == {"a": 3}
    assert counters.take_changes() == {"a": 1}
    assert counters.take_changes("vllm") == {}


def test_restore_times_are_reported_once_and_never_pile_up() -> None:
    times = Durations()
    for _ in range(limits.RESTORE_TIMES_MAX + 1):
        times.add("host", 0.1)
    times.add("vault", 0.2)
    taken = times.take()
    assert len(taken["host"]) == limits.RESTORE_TIMES_MAX
    assert taken["vault"] == [0.2]
    assert times.take() == {}


@pytest.fixture
def metrics() -> Iterator[TierKVPromMetrics]:
    """Two engines' metrics; they leave the registry as they found it."""
    before = set(REGISTRY._collector_to_names)
    types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    yield TierKVPromMetrics(
        vllm_config(), types, ["model", "engine"], {0: ["m", "0"], 1: ["m", "1"]}
    )
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


def test_prometheus_has_a_counter_by_event_and_a_histogram_by_tier(
    metrics: TierKVPromMetrics,
) -> None:
    metrics.observe(TierKVStats.of({"restores_admitted": 2}, {"vault": [0.2]}).data, 1)
    metrics.observe(TierKVStats.of({"restores_admitted": 1}, {"vault": [3.0]}).data, 1)
    labels = {"model": "m", "engine": "1", "event": "restores_admitted"}
    assert REGISTRY.get_sample_value(f"{METRIC}_total", labels) == 3
    tier = {"model": "m", "engine": "1", "tier": "vault"}
    assert REGISTRY.get_sample_value(f"{RESTORE_METRIC}_sum", tier) == pytest.approx(3.2)
    assert REGISTRY.get_sample_value(f"{RESTORE_METRIC}_bucket", {**tier, "le": "0.25"}) == 1


def test_what_is_no_event_has_a_counter_in_its_own_unit(metrics: TierKVPromMetrics) -> None:
    counts = {"tokens_restored": 512, "bytes_loaded": 4096, "bytes_offered": 8192}
    counts |= {"restore_wait_ms": 1500, "misses_no_answer": 2, "dropped_save_no_slot": 3}
    for _ in range(2):
        metrics.observe(TierKVStats.of(counts, {}).data, 0)
    labels = {"model": "m", "engine": "0"}

    def value(name: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(f"vllm:tierkv_{name}_total", labels | more)

    assert value("restored_tokens") == 1024
    assert value("loaded_bytes") == 8192
    assert value("offered_bytes") == 16384
    assert value("restore_wait_seconds") == pytest.approx(3.0)
    assert value("misses", reason="no_answer") == 4
    assert value("dropped_blocks", reason="save_no_slot") == 6
    assert not [name for name in counts if value("events", event=name)]


def test_the_plug_in_registers_the_connector_by_name_however_often() -> None:
    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name("TierKVConnector") is TierKVConnector
