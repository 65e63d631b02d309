"""Owns who waits for whose load: one request loads a prefix, others that need it wait and find it in the engine."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.grid import Grid


class Expecting(Protocol):
    """Forecasts how long a load that begins now takes, in seconds."""

    def expected_s(self) -> float: ...


@dataclass(slots=True, eq=False)
class Leader:
    """A request whose load is under way: the prompt's tokens from `start` to `end`; `until_s`: nobody waits longer."""

    request: Any
    start: int
    end: int
    until_s: float

    @property
    def is_loading(self) -> bool:
        """Tell whether its blocks are still to come. Once they are in the engine's cache, or lost, they are not."""
        return compat.is_loading(self.request)

    def leads(self, now: float) -> bool:
        """Tell whether others wait for it."""
        return self.is_loading and now < self.until_s


class Leaders:
    """vLLM puts loaded blocks into its cache when it serves their request again, and only then others hit them.

    A leader that is aborted or fails leads no more, so the next request that vLLM queries loads in its place.
    """

    def __init__(self, grid: Grid, loads: Expecting, counters: Counters) -> None:
        self._grid = grid
        self._loads = loads
        self._counters = counters
        #: Requests whose load was queued, by id; those that do not load any more are removed as others look.
        self.by_id: dict[str, Leader] = {}

    def begin(
        self, request: Any, start: int, end: int, now: float, *, is_coming: bool = False
    ) -> None:
        """Note an admission that was just queued: prompt tokens from `start` to `end`.

        `is_coming`: its blocks are still fetched, which ends as soon as computing is quicker, for followers, too.
        """
        wait_s = max(limits.FOLLOW_LEAST_S, limits.FOLLOW_MARGIN * self._loads.expected_s())
        until_s = math.inf if is_coming else now + wait_s
        self.by_id[request.request_id] = Leader(request, start, end, until_s)

    def follows(self, state: Any, start: int, most: int, now: float) -> bool:
        """Tell whether a request waits for another's load of what it needs from `start` tokens on.

        `most`: the deepest boundary that it may restore.
        """
        leader = state.leader
        if leader is None or not leader.leads(now):
            leader = state.leader = self._find(state.request, start, most, now)
            state.has_followed |= leader is not None
            self._counters.add("followers", int(leader is not None))
        return leader is not None

    def _find(self, request: Any, start: int, most: int, now: float) -> Leader | None:
        for req_id, leader in list(self.by_id.items()):
            if not leader.is_loading:
                del self.by_id[req_id]
            elif leader.leads(now) and self._is_worth(leader, request, start, most):
                return leader
        return None

    def _is_worth(self, leader: Leader, request: Any, start: int, most: int) -> bool:
        """Tell whether enough of a load is what a request needs."""
        if not leader.start <= start < min(leader.end, most):
            return False
        theirs, ours = leader.request.block_hashes, request.block_hashes
        size = self._grid.hash_tokens
        if ours[start // size] != theirs[start // size]:
            return False
        if (
            not self._grid.is_plain
        ):  # windows and states are restored at the end of the whole load only
            last = leader.end // size - 1
            return leader.end <= most and ours[last] == theirs[last]
        end = min(leader.end, most)
        shared = shared_hashes(theirs, ours, end // size) * size - start
        return shared * limits.FOLLOW_SHARE >= leader.end - leader.start


def shared_hashes(some: Any, others: Any, most: int) -> int:
    """Count the leading block hashes, at most `most`, that two prompts share; each depends on all before it."""
    low, high = 0, min(most, len(some), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if some[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
