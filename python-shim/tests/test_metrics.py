"""vLLM's own metrics: counts add up over ranks and intervals, each is reported once, and Prometheus shows them."""

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from tierkv.connectors.vllm.connector import TierKVConnector
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.metrics import METRIC, TierKVPromMetrics, TierKVStats
from tierkv.connectors.vllm.plugin import register
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from .support.engine import vllm_config


def test_counts_of_two_ranks_add_up_and_start_anew() -> None:
    one, two = TierKVStats(data={"a": 1, "b": 2}), TierKVStats(data={"b": 3})
    both = one.aggregate(two)
    assert both.reduce() == {"a": 1, "b": 5}
    assert not both.is_empty()
    both.reset()
    assert both.is_empty()


def test_what_travelled_between_processes_becomes_stats_again() -> None:
    assert TierKVConnector.build_kv_connector_stats({"a": 1}).reduce() == {"a": 1}
    assert TierKVConnector.build_kv_connector_stats().is_empty()


def test_the_sidecar_and_vllm_each_hear_of_every_count_once() -> None:
    counters = Counters()
    counters.add("a", 2)
    assert counters.take_changes() == {"a": 2}
    counters.add("a")
    assert counters.take_changes("vllm") == {"a": 3}
    assert counters.take_changes() == {"a": 1}
    assert counters.take_changes("vllm") == {}


def test_prometheus_has_one_counter_with_the_event_as_label() -> None:
    types = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    metrics = TierKVPromMetrics(
        vllm_config(), types, ["model", "engine"], {0: ["m", "0"], 1: ["m", "1"]}
    )
    metrics.observe({"restores_admitted": 2}, 1)
    metrics.observe({"restores_admitted": 1}, 1)
    labels = {"model": "m", "engine": "1", "event": "restores_admitted"}
    assert REGISTRY.get_sample_value(f"{METRIC}_total", labels) == 3


def test_the_plug_in_registers_the_connector_by_name_however_often() -> None:
    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name("TierKVConnector") is TierKVConnector
