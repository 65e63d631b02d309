"""tierKV's counters in vLLM's own metrics: summed over ranks, logged with its statistics, and given to Prometheus."""

from collections import Counter
from typing import Any, Final

from tierkv.connectors.vllm.api.compat import KVConnectorPromMetrics, KVConnectorStats

#: Counter of events; its label `event` is the shim counter's name (docs/metrics of the sidecar).
METRIC: Final = "vllm:tierkv_events"
#: Counters with a unit, by name: metric, factor to its base unit, help.
AMOUNTS: Final = {
    "tokens_restored": ("vllm:tierkv_restored_tokens", 1.0, "Prompt tokens that were restored."),
    "bytes_loaded": ("vllm:tierkv_loaded_bytes", 1.0, "Bytes copied into the engine's pages."),
    "bytes_offered": ("vllm:tierkv_offered_bytes", 1.0, "Bytes of pages given to the sidecar."),
    "restore_wait_ms": (
        "vllm:tierkv_restore_wait_seconds",
        0.001,
        "Seconds from an engine's first question about a request until it took what was restored.",
    ),
}
#: Counters by cause, by the prefix of their names; the rest of a name is the label `reason`.
CAUSES: Final = {
    "misses_": ("vllm:tierkv_misses", "Requests that asked and got nothing, by reason."),
    "dropped_": ("vllm:tierkv_dropped_blocks", "Blocks that were not saved or told of, by reason."),
}
#: Histogram of requests' waits for restored blocks; its label `tier` is the farthest place a block came from.
RESTORE_METRIC: Final = "vllm:tierkv_restore_seconds"
#: Upper bounds of the histogram, seconds: from a hit in the sidecar's own memory to a long `[restore] wait_ms`.
RESTORE_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class TierKVStats(KVConnectorStats):
    """Counts and times since the last report; plain numbers and lists, because they travel between processes.

    `data["events"]` maps a counter's name to a number, `data["restore_s"]` a tier (`host`: the sidecar's own memory,
    `vault`) to the seconds each restore of it took.
    """

    @classmethod
    def of(cls, events: dict[str, int], restore_s: dict[str, list[float]]) -> "TierKVStats":
        """Make a report; empty parts are left out."""
        parts = {"events": events, "restore_s": restore_s}
        return cls(data={name: part for name, part in parts.items() if part})

    @property
    def events(self) -> dict[str, int]:
        """Counts by name."""
        events: dict[str, int] = self.data.get("events", {})
        return events

    @property
    def restore_s(self) -> dict[str, list[float]]:
        """Restore times by tier, seconds."""
        times: dict[str, list[float]] = self.data.get("restore_s", {})
        return times

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> "TierKVStats":
        more = TierKVStats(data=other.data)
        tiers = {*self.restore_s, *more.restore_s}
        return TierKVStats.of(
            dict(Counter(self.events) + Counter(more.events)),
            {tier: self.restore_s.get(tier, []) + more.restore_s.get(tier, []) for tier in tiers},
        )

    def reduce(self) -> dict[str, int | float]:
        """Give the sums, and the mean restore time of each tier in milliseconds, for vLLM's log."""
        means = {
            f"restore_ms_{tier}": round(1000 * sum(times) / len(times), 1)
            for tier, times in sorted(self.restore_s.items())
            if times
        }
        return {**self.events, **means}

    def is_empty(self) -> bool:
        return not self.data


class TierKVPromMetrics(KVConnectorPromMetrics):
    """A counter for each unit, and one histogram with the label `tier`, beside the engine's labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._events = self._counter_cls(
            name=METRIC,
            documentation="What tierKV did in this engine, by event.",
            labelnames=[*labelnames, "event"],
        )
        self._amounts = {
            counter: self._counter_cls(name=name, documentation=text, labelnames=labelnames)
            for counter, (name, _, text) in AMOUNTS.items()
        }
        self._causes = {
            prefix: self._counter_cls(
                name=name, documentation=text, labelnames=[*labelnames, "reason"]
            )
            for prefix, (name, text) in CAUSES.items()
        }
        self._restores = self._histogram_cls(
            name=RESTORE_METRIC,
            documentation="Seconds a request waited for its restored blocks, by the farthest place one came from.",
            labelnames=[*labelnames, "tier"],
            buckets=RESTORE_BUCKETS_S,
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        report = TierKVStats(data=transfer_stats_data)
        for name, amount in report.events.items():
            self._add(labels, name, amount)
        for tier, times in report.restore_s.items():
            for seconds in times:
                self._restores.labels(*labels, tier).observe(seconds)

    def _add(self, labels: list[object], name: str, amount: int) -> None:
        if name in AMOUNTS:
            self._amounts[name].labels(*labels).inc(amount * AMOUNTS[name][1])
            return
        for prefix, metric in self._causes.items():
            if name.startswith(prefix):
                metric.labels(*labels, name.removeprefix(prefix)).inc(amount)
                return
        self._events.labels(*labels, name).inc(amount)
