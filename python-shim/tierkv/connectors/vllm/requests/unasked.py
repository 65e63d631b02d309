"""Owns the reports on requests without a look-up: their reasons, for `tierkv explain`."""

from collections import deque
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import request_text
from tierkv.connectors.vllm.requests.requests import traceparent_of


class Unasked:
    """Noted on the engine's thread, taken by the helper thread; past the ceiling the oldest are forgotten."""

    def __init__(self) -> None:
        self._rows: deque[tuple[str | int, ...]] = deque(maxlen=limits.UNASKED_ROWS_MAX)

    def note(self, request: Any, why: str, own_tokens: int = 0) -> str:
        """Note and return `why`, a sidecar's reason; `own_tokens` of the prompt lie in the engine's cache."""
        row = (request_text(request.request_id), why, int(request.num_tokens), own_tokens)
        traceparent = traceparent_of(request)
        self._rows.append((*row, traceparent) if traceparent else row)
        return why

    def explain(
        self,
        request: Any,
        own_tokens: int,
        most: int,
        tokens_min: int,
        *,
        is_named: bool,
        is_capped: bool = False,
    ) -> str:
        """Note and return why no plan was opened: `most` tokens may be restored, `tokens_min` are worth it.

        `is_capped`: the request allows fewer tokens than could be restored.
        """
        if most <= own_tokens and is_capped:
            why = "max_load_tokens"
        elif most <= 0:
            why = "below_block"
        elif most - own_tokens < tokens_min:
            why = "own_cache" if own_tokens > 0 else "not_worth_asking"
        else:
            why = "too_many" if is_named else "unnamed"
        return self.note(request, why, own_tokens)

    def take(self) -> Frame:
        """Give the new rows as a field of `counts`; empty without any."""
        rows = []
        while self._rows:
            rows.append(self._rows.popleft())
        return {"unasked": rows} if rows else {}
