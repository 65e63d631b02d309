"""Waits briefly for the sidecar in scheduler steps that have nothing to compute."""

import threading
from typing import Final

from tierkv.connectors.vllm import limits

#: The result after which vLLM queries a connector again in its next step.
ASK_AGAIN: Final = (None, False)


class IdleSteps:
    """Releases the GIL to the helper thread in such a step, until a frame arrives.

    An engine in the caller's own process spins through them and keeps the interpreter's lock for 5 ms at a time, twice
    for each answer; vLLM's engine process sleeps between them (v1/engine/core.py, `_process_engine_step`).
    """

    def __init__(self) -> None:
        self._is_waited_for = False
        self._heard = threading.Event()
        #: Whether the step must call `end`: a request waits, or a frame came.
        self.is_stirred = False

    def hear(self) -> None:
        """Wake a waiting step, because a frame may change its requests. From the helper thread."""
        self.is_stirred = True
        self._heard.set()

    def ask_again(self) -> tuple[None, bool]:
        """Gives `ASK_AGAIN`, and remembers that a request waits in this step."""
        self._is_waited_for = self.is_stirred = True
        return ASK_AGAIN

    def expect(self) -> None:
        """Remember that a load waits for a frame in this step."""
        self._is_waited_for = self.is_stirred = True

    def end(self, *, computes: bool) -> None:
        """Ends the scheduling of a step; the next one sees later frames."""
        if self._is_waited_for and not computes:
            self._heard.wait(limits.IDLE_STEP_S)
        self._is_waited_for = self.is_stirred = False
        self._heard.clear()
