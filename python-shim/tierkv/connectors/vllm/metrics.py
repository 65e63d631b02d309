"""Our counters in vLLM's own metrics: summed over ranks, logged with its statistics, and given to Prometheus."""

from collections import Counter
from typing import Any, Final

from tierkv.connectors.vllm.compat import KVConnectorPromMetrics, KVConnectorStats

#: One Prometheus counter for all of ours; its label `event` is the counter's name (docs/metrics of the sidecar).
METRIC: Final = "vllm:tierkv_events"


class TierKVStats(KVConnectorStats):
    """Counts since the last report; `data` maps a counter's name to a number."""

    def reset(self) -> None:
        """Start again at nothing."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> "TierKVStats":
        """Add up the counts of two processes or two intervals."""
        return TierKVStats(data=dict(Counter(self.data) + Counter(other.data)))

    def reduce(self) -> dict[str, int | float]:
        """Give the sums as they are."""
        return dict(self.data)

    def is_empty(self) -> bool:
        """Tell whether nothing was counted."""
        return not self.data


class TierKVPromMetrics(KVConnectorPromMetrics):
    """One counter with the engine's labels and the label `event`."""

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
            documentation="What tierKV did and dropped in this engine, by event.",
            labelnames=[*labelnames, "event"],
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add one report of one engine."""
        labels = self.per_engine_labelvalues[engine_idx]
        for name, amount in transfer_stats_data.items():
            self._events.labels(*labels, name).inc(amount)
