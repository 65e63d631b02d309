"""What the scheduler side keeps of a request between its arrival and its end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tierkv.connectors.vllm.plans import Plan
from tierkv.connectors.vllm.saves import SaveCursor


@dataclass
class RequestState:
    """One request; `offer` is what vLLM may be about to admit: its plan and the tokens before it."""

    request: Any
    reads: bool
    plan: Plan | None = None
    cursor: SaveCursor = field(default_factory=SaveCursor)
    first_ask_s: float | None = None
    gave_up: bool = False
    is_missed: bool = False
    plans_opened: int = 0
    offer: tuple[Plan, int] | None = None

    @property
    def holds(self) -> Callable[[int, int], bool] | None:
        """Tell by group and index what its look-up reported as held; None without an answer."""
        return self.plan.holds if self.plan is not None and self.plan.is_looked_up else None

    def answered(self) -> float | None:
        """Forget one admission's asking; gives when it began, if it was asked at all."""
        asked_at_s, self.first_ask_s = self.first_ask_s, None
        self.gave_up = self.is_missed = False
        self.plans_opened = 0
        return asked_at_s
