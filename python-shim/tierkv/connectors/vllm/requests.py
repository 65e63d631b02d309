"""What the scheduler side keeps of a request between its arrival and its end."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tierkv.connectors.vllm.plans import Plan
from tierkv.connectors.vllm.saves import SaveCursor

#: A picture's identifier as vLLM makes it of what is in it: a digest of 32 or 64 bytes, in hexadecimal.
_DIGEST: Final = re.compile("[0-9a-f]{64}|[0-9a-f]{128}")


def is_cacheable(request: Any) -> bool:
    """Exclude what block hashes do not name completely: adapters by name only, embeddings, open-ended prompts.

    And pictures that a client names itself (`multi_modal_uuids`): vLLM takes such a name for the picture's hash, which
    is that client's promise to one engine, and would be everybody's here.
    """
    return (
        request.pooling_params is None
        and request.lora_request is None
        and request.prompt_embeds is None
        and not request.resumable
        and all(_DIGEST.fullmatch(feature.identifier) for feature in request.mm_features)
    )


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

    def forget_blocks(self) -> None:
        """Forget what was found and offered of it: weights are others now."""
        self.plan = None
        self.cursor = SaveCursor()

    def answered(self) -> float | None:
        """Forget one admission's asking; gives when it began, if it was asked at all."""
        asked_at_s, self.first_ask_s = self.first_ask_s, None
        self.gave_up = self.is_missed = False
        self.plans_opened = 0
        return asked_at_s
