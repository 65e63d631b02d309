"""Times restored requests from their arrival at vLLM's server to their first token, for the sidecar's forecasts."""

import time
from collections.abc import Callable
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import request_text
from tierkv.connectors.vllm.requests.plans import Plan


class FirstTokens:
    """One request at a time: only a request that has the engine to itself shows what vLLM's own parts take."""

    def __init__(self, send: Callable[[Frame], bool]) -> None:
        self._send = send
        self._awaited: tuple[Any, int] | None = None

    @property
    def is_awaited(self) -> bool:
        """Tell whether a first token is to come; costs the engine's thread nothing where none is."""
        return self._awaited is not None

    def expect(self, request: Any, plan: Plan) -> None:
        """Note that all blocks of `plan` are loaded, and the rest of the prompt is to be computed."""
        if plan.took_s > 0:
            self._awaited = (request, plan.plan_id)

    def look(self, requests: int) -> None:
        """Report the request once it has a token; `requests`: how many vLLM has now."""
        assert self._awaited is not None
        request, plan_id = self._awaited
        if requests > 1 or request.output_token_ids:
            self._awaited = None
        if requests <= 1 and request.output_token_ids:
            self._report(request, plan_id)

    def ended(self, request: Any, others: int) -> None:
        """Report a request that ends with its first token; `others`: how many vLLM has beside it."""
        if self._awaited is not None and self._awaited[0] is request:
            self.look(others + 1)
            self._awaited = None

    def _report(self, request: Any, plan_id: int) -> None:
        # vLLM's server takes the time as it accepts the request, in a process and perhaps on a host of its own.
        took_s = time.time() - request.arrival_time
        if not 0 < took_s < limits.FIRST_TOKEN_S_MAX:
            return
        self._send(
            {
                "t": "answered",
                "req": request_text(request.request_id),
                "plan": plan_id,
                "tokens": request.num_prompt_tokens,
                "us": int(took_s * 1e6),
            }
        )
