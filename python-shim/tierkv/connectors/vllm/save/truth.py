"""Owns the check of truth: an engine recomputes a block that it could restore, and compares the two."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import CheckItem
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.pages import AttentionPages, Pages
from tierkv.connectors.vllm.requests.plans import Plan, PlanBook


@dataclass(slots=True)
class _Check:
    """One block of an admitted plan that was left to compute; `number`: set once the workers are asked."""

    request: Any
    plan: Plan
    index: int
    is_loaded: bool = False
    number: int = 0


class TruthChecks:
    """The scheduler's half: leaves the last block of some restores to the engine, and keeps its slots for comparison.

    Only in an idle engine, so that no request waits for it, and only for models of one group with full attention,
    because other models need all blocks of a boundary. `has_drafts`: the engine has a draft model's layers; no block is
    checked then, because their values depend on the token behind a block, too.
    """

    def __init__(self, book: PlanBook, counters: Counters, *, has_drafts: bool = False) -> None:
        self._book = book
        self._has_drafts = has_drafts
        self._counters = counters
        #: Checks by request; `next_step` gives those due.
        self.checks: dict[str, _Check] = {}
        self._restores = 0
        self._number = 0
        #: Restores per check; 0: none.
        self.every = 0
        #: Whether stored blocks are lossy.
        self.is_lossy = False
        #: Why records under this engine's name are distrusted; empty if they are not.
        self.verdict = ""

    def configure(self, welcome: Mapping[str, Any]) -> None:
        """Take the sidecar's settings. From the helper thread."""
        self.every = 0 if self._has_drafts else int(welcome.get("verify_every", 0))

    def is_due(self, plan: Plan, *, is_idle: bool) -> bool:
        """Tell whether a block of a plan is to be checked, if it is restored now."""
        if not self.every or not is_idle or not plan.is_plain:
            return False
        return (self._restores + 1) % self.every == 0

    def choose(self, plan: Plan, start: int, ready: int, *, is_idle: bool) -> int:
        """Give how many of `ready` tokens after the first `start` are restored: all, or all but the last block."""
        plan.checked = -1
        if not self.is_due(plan, is_idle=is_idle):
            return ready
        if ready > plan.placed_from(start):
            return ready  # slots return as it loads
        (part,) = plan.groups.values()
        tokens = part.group.block_tokens
        if part.group.is_opaque or ready < 2 * tokens:
            return ready
        plan.checked = (start + ready) // tokens - 1
        return ready - tokens

    def admitted(self, request: Any, plan: Plan) -> None:
        """Note that vLLM took an offer."""
        self._restores += 1
        self.drop(request.request_id)
        if plan.checked >= 0:
            self.checks[request.request_id] = _Check(request, plan, plan.checked)

    def loaded(self, req_id: str, plan: Plan | None) -> None:
        """Give the plan's slots back, or keep them for the comparison."""
        if plan is None:
            return
        check = self.checks.get(req_id)
        if check is None or check.plan is not plan:
            self._book.release_plan(plan)
        else:
            plan.loaded_at_s = time.monotonic()
            check.is_loaded = True

    def next_step(
        self, scheduled: Mapping[str, int], tables: Callable[[str], Sequence[Sequence[int]] | None]
    ) -> list[CheckItem]:
        """Give the blocks that workers compare after this step's forward."""
        items = []
        for req_id, check in list(self.checks.items()):
            (part,) = check.plan.groups.values()
            computed = check.request.num_computed_tokens + scheduled.get(req_id, 0)
            is_due = computed >= (check.index + 1) * part.group.block_tokens
            if check.number or not check.is_loaded or req_id not in scheduled or not is_due:
                continue
            table = tables(req_id)
            found = table[part.group.index] if table is not None else ()
            block_id = found[check.index] if check.index < len(found) else 0
            if block_id == 0:
                self.drop(req_id)
                continue
            self._number += 1
            check.number = self._number
            slots = part.slots_of(check.index)
            items.append(
                CheckItem(check.number, check.plan.arena, part.group.index, block_id, slots)
            )
        return items

    def hear(self, found: Mapping[int, float]) -> bool:
        """Take the workers' measurements, dB by check number (infinite: not comparable); True for a new verdict."""
        had_verdict = bool(self.verdict)
        for req_id, check in list(self.checks.items()) if found else ():
            if check.number in found:
                self._judge(check, found[check.number])
                self.drop(req_id)
        return bool(self.verdict) and not had_verdict

    def _judge(self, check: _Check, measured_db: float) -> None:
        if math.isinf(measured_db) and measured_db > 0:
            self._counters.add("truth_unchecked")
            return
        bound_db = limits.TRUTH_LOSSY_DB_MIN if self.is_lossy else limits.TRUTH_DB_MIN
        self._counters.add("truth_checks")
        if measured_db >= bound_db:
            return
        self._counters.add("truth_mismatches")
        self.verdict = (
            f"block {check.index} of request {check.plan.req_id} was stored with {measured_db:.1f} dB to what this "
            f"engine computes ({bound_db:.0f} dB or more expected): weights or settings changed unseen, or the records "
            "are wrong; flush the model and restart the engine"
        )

    def drop(self, req_id: str) -> None:
        """Forget a request's check; its slots return once the load is done."""
        check = self.checks.pop(req_id, None)
        if check is not None and check.is_loaded:
            self._book.release_plan(check.plan)

    def clear(self) -> None:
        """Drop all checks, because the weights have changed."""
        for req_id in list(self.checks):
            self.drop(req_id)


def likeness_db(pages: Pages, block_id: int, slot_bytes: torch.Tensor) -> float:
    """Give how far a block in the engine and one in a slot agree: the worst layer's keys or values, in dB.

    Signal over error, so it does not depend on the scale; infinite for pages other than attention's.
    """
    if not isinstance(pages, AttentionPages):
        return math.inf
    dim_k = pages.group.dim_k
    ours = pages.read(block_id).to(torch.float32)
    theirs = pages.vectors(slot_bytes).to(ours.device).to(torch.float32)
    worst = limits.TRUTH_DB_MAX
    for half in (slice(0, dim_k), slice(dim_k, None)):
        if ours[..., half].numel() > 0:
            worst = min(worst, _worst_layer_db(ours[..., half], theirs[..., half]))
    return worst


def _worst_layer_db(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Give the worst layer's agreement; both tensors are (layers, ...) in float32."""
    others = list(range(1, ours.dim()))
    signal = ours.square().sum(dim=others, dtype=torch.float64)
    error = (ours - theirs).square().sum(dim=others, dtype=torch.float64)
    ratio = (signal + 1e-30) / (error + 1e-30)
    ratio = torch.nan_to_num(ratio, nan=0.0)
    return 10 * math.log10(max(float(ratio.min()), 1e-30))
