"""Owns the count of the engine's running slots, so that a load begins only where its request can run after it."""

from typing import Any

from tierkv.connectors.vllm.api import compat


class RunningSlots:
    """Slots of one engine: taken by requests that run, load or have loaded, and claimed in the order of vLLM's queue.

    vLLM counts only requests that run, so it would start loads for all that wait, and serves a waiting request that
    holds KV before any other. Each request that vLLM queries in a step claims a slot, whether it waits for its blocks,
    loads them or computes at once: an earlier request that waits keeps its turn.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        #: Requests that vLLM gave blocks and that have not ended, by id; a preempted one takes no slot.
        self._begun: dict[str, Any] = {}
        #: Slots left in this step; None before its first query.
        self._left: int | None = None
        self._claimed: set[str] = set()
        #: Whether the step has claims, so that `next_step` must be called.
        self.is_claimed = False

    def next_step(self) -> None:
        """Forget the claims, after a step's scheduling."""
        self._left = None
        self.is_claimed = False
        self._claimed.clear()

    def begin(self, request: Any) -> None:
        """Note that vLLM gave a request blocks."""
        self._begun[request.request_id] = request

    def end(self, req_id: str) -> None:
        self._begun.pop(req_id, None)

    def claim(self, request: Any) -> bool:
        """Tell whether a slot is left for a request that vLLM queries; it is taken until the next step."""
        if request.request_id in self._claimed:
            return True
        self.is_claimed = True
        if self._left is None:
            self._left = self._count - sum(map(compat.takes_slot, self._begun.values()))
        if self._left <= 0:
            return False
        self._left -= 1
        self._claimed.add(request.request_id)
        return True
