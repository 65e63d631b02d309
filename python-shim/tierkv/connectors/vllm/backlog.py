"""Owns how many requests wait for the engine: those before a new one make up the time that its blocks may take."""

from tierkv.connectors.vllm.requests import RequestState


class Backlog:
    """Requests that came and that vLLM gave no blocks yet, in the order they came."""

    def __init__(self) -> None:
        self._length = 0

    def join(self, state: RequestState) -> None:
        """Hear of a new request."""
        state.ahead = self._length
        self._length += 1

    def begin(self, state: RequestState) -> None:
        """Hear that a request has blocks, or ended without any; only the first word of it counts."""
        if not state.is_begun:
            state.is_begun = True
            self._length -= 1

    def ahead(self, state: RequestState) -> int:
        """Count those before a request, at most: some that came before it may have begun since."""
        return 0 if state.is_begun else min(state.ahead, self._length - 1)
