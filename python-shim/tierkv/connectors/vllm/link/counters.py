"""Counts what the shim did and dropped, by reason; the differences go to the sidecar and into vLLM's own metrics."""

from collections import deque
from threading import Lock

from tierkv.connectors.vllm import limits


class Counters:
    """Named counters. Names are the wire names of docs/metrics in the sidecar, where they get the prefix `shim_`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._total: dict[str, int] = {}
        self._reported: dict[str, dict[str, int]] = {}
        #: Number of the last change, and the last one that each reader has taken.
        self._version = 0
        self._seen: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> int:
        """Add to a counter and give its sum: 1 the first time, for messages logged once."""
        with self._lock:
            total = self._total.get(name, 0) + amount
            if amount:
                self._total[name] = total
                self._version += 1
            return total

    def get(self, name: str) -> int:
        with self._lock:
            return self._total.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._total)

    def take_changes(self, reader: str = "sidecar") -> dict[str, int]:
        """Differences since that reader's last call; empty when nothing happened."""
        if self._seen.get(reader, 0) == self._version:
            return {}
        with self._lock:
            self._seen[reader] = self._version
            reported = self._reported.get(reader, {})
            changes = {
                name: total - reported.get(name, 0)
                for name, total in self._total.items()
                if total != reported.get(name, 0)
            }
            self._reported[reader] = dict(self._total)
            return changes


class Durations:
    """Durations in seconds by name, on the engine's thread; past the ceiling the oldest are forgotten."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        self._kept.setdefault(name, deque(maxlen=limits.RESTORE_TIMES_MAX)).append(seconds)

    def take(self) -> dict[str, list[float]]:
        """Give the durations since the last call."""
        if not self._kept:
            return {}
        taken = {name: list(kept) for name, kept in self._kept.items()}
        self._kept.clear()
        return taken
