"""Owns the steps of an engine that compute nothing because they wait for the sidecar: they wait for its word."""

import threading
from typing import Final

from tierkv.connectors.vllm import limits

#: What vLLM asks a connector again after, in its next step.
ASK_AGAIN: Final = (None, False)


class IdleSteps:
    """Leaves the interpreter to the helper thread in such a step, until it has heard something.

    An engine in the caller's own process spins through them and keeps the interpreter's lock for 5 ms at a time, twice
    for each answer; vLLM's engine process sleeps between them (v1/engine/core.py, `_process_engine_step`).
    """

    def __init__(self) -> None:
        self._is_waited_for = False
        self._heard = threading.Event()
        #: A step has to end with `end`: a request waits, or something was heard.
        self.is_stirred = False

    def hear(self) -> None:
        """Say that what requests wait for may have changed. From the helper thread."""
        self.is_stirred = True
        self._heard.set()

    def ask_again(self) -> tuple[None, bool]:
        """Gives what says that a request waits, and remembers it for this step."""
        self._is_waited_for = self.is_stirred = True
        return ASK_AGAIN

    def end(self, *, computes: bool) -> None:
        """Ends the scheduling of a step. What is heard from here on is seen by the next one."""
        if self._is_waited_for and not computes:
            self._heard.wait(limits.IDLE_STEP_S)
        self._is_waited_for = self.is_stirred = False
        self._heard.clear()
