"""Owns the state of a request at the scheduler side, from its arrival to its end."""

import hmac
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.answers import Given, Handoff, Wish, answer, wish_of
from tierkv.connectors.vllm.requests.cursors import Missing, SaveCursor
from tierkv.connectors.vllm.requests.leaders import Leader
from tierkv.connectors.vllm.requests.plan_group import PlanGroup
from tierkv.connectors.vllm.requests.plans import Plan

log = logging.getLogger("tierkv.shim")

_DOMAIN: Final = b"tierkv tenant"
#: Bytes of a tenant's number: JavaScript holds it exactly.
_ID_BYTES: Final = 6
#: A picture's identifier as vLLM makes it from the content: a digest of 32 or 64 bytes, in hexadecimal.
_DIGEST: Final = re.compile("[0-9a-f]{64}|[0-9a-f]{128}")


def is_cacheable(request: Any) -> bool:
    """Exclude what block hashes do not name completely: adapters by name only, embeddings, open-ended prompts.

    Pictures that a client names itself (`multi_modal_uuids`) are excluded, too: vLLM takes the name for the picture's
    hash, and one client's name must not identify a block for all engines.
    """
    return (
        request.pooling_params is None
        and request.lora_request is None
        and request.prompt_embeds is None
        and not request.resumable
        and all(_DIGEST.fullmatch(feature.identifier) for feature in request.mm_features)
    )


def tenant_of(request: Any) -> int:
    """Give the number of a request's tenant: 0 without a `cache_salt`, else below 2**48, the same for equal salts.

    A block counts against the tenant's share of a vault. Hashes keep tenants' blocks apart, because vLLM makes the salt
    a part of them (v1/core/kv_cache_utils.py, `generate_block_hash_extra_keys`).
    """
    salt = request.cache_salt
    return _number(salt) if salt else 0


@lru_cache(maxsize=limits.TENANTS_REMEMBERED)
def _number(salt: str) -> int:
    digest = hmac.digest(_DOMAIN, salt.encode("utf-8", "surrogatepass"), "sha256")
    return int.from_bytes(digest[:_ID_BYTES], "little") or 1


def traceparent_of(request: Any) -> str:
    """Give the `traceparent` of a request's client; empty without one, and where vLLM's own tracing is off.

    vLLM passes headers on only with `--otlp-traces-endpoint`. A header that no version allows is dropped.
    """
    headers = request.trace_headers or {}
    traceparent = str(headers.get("traceparent", ""))
    is_sound = traceparent.isascii() and len(traceparent) <= limits.TRACEPARENT_CHARS_MAX
    return traceparent if is_sound else ""


def note_length(request: Any, grid: Grid, counters: Counters) -> None:
    """Count a prompt if it is too short or too long; say each once.

    Where blocks are as long as prompts, with recurrent states, a short one never hits.
    """
    if request.num_tokens <= grid.step:
        is_first = counters.add("prompts_below_block") == 1
        if is_first and any(group.is_state for group in grid.groups):
            log.info(
                "tierKV: a prompt of %d tokens is not longer than one block of this hybrid model (%d tokens), so "
                "nothing of it can be restored; further such prompts are only counted (shim_prompts_below_block)",
                request.num_tokens,
                grid.step,
            )
    elif grid.beyond(request) > 0 and counters.add("prompts_cut") == 1:
        log.warning(
            "tierKV: of a prompt of %d tokens the first %d are looked up, the most of one look-up; "
            "further such prompts are only counted (shim_prompts_cut)",
            request.num_tokens,
            grid.limit(request),
        )


def beside_hashes(state: "RequestState", beyond: int, awaited: int) -> Frame:
    """Give the rare fields of `prefetch`: the tenant, tokens beyond the longest look-up, the client's trace,

        the tokens that another engine hands over, the requests waiting ahead, whether its blocks return, and its
    receipt's name.
    """
    tenant, traceparent = tenant_of(state.request), traceparent_of(state.request)
    fields = {"tenant": tenant, "beyond": beyond, "traceparent": traceparent}
    fields |= {"longer": state.longer if awaited else {}, "ahead": state.ahead, "handoff": awaited}
    fields |= {"returns": int(state.cursor.returns), "receipt": state.receipt}
    return {name: value for name, value in fields.items() if value}


@dataclass(slots=True)
class Waiting:
    """The plan a request waits for. `news`: the plan's count of frames then; `is_timed`: the budget's clock ran."""

    plan: Plan
    news: int
    start: int
    is_timed: bool
    silent_since_s: float


@dataclass
class RequestState:
    """One request; `offer`: the plan that vLLM may be about to admit, and the tokens before it.

    `seen_s`: vLLM's first query; `first_ask_s`: the first with room for the request; `refused_at_s`: the query after
    an offer that vLLM had no room for; `unasked`: why no plan was opened at its arrival; `host_tokens`: tokens of
    its last admission that came from no vault; `is_capped`: its client allows fewer than could be restored;
    `ahead`: earlier requests not begun at its arrival; `is_begun`: vLLM gave it blocks;
    `awaited`: tokens that another engine hands over, None before that is known; `waits`: the plan it waits for;
    `longer`: the other engine's blocks, where they are longer;
    `leader`: the request whose load it waits for, `has_followed`: there was one; `shared_tokens`: prompt tokens that
    another request's plan covers, None with a plan of its own;
    `receipt`: name of its last restore's receipt, where its client wants one.
    """

    request: Any
    reads: bool
    plan: Plan | None = None
    cursor: SaveCursor = field(default_factory=SaveCursor)
    seen_s: float | None = None
    first_ask_s: float | None = None
    refused_at_s: float = 0.0
    gave_up: bool = False
    is_missed: bool = False
    plans_opened: int = 0
    offer: tuple[Plan, int] | None = None
    wish: Wish = field(init=False)
    given: Given = field(default_factory=Given)
    host_tokens: int = 0
    unasked: str = ""
    is_capped: bool = False
    awaited: int | None = None
    ahead: int = 0
    is_begun: bool = False
    leader: Leader | None = None
    has_followed: bool = False
    shared_tokens: int | None = None
    longer: Frame = field(default_factory=dict)
    waits: Waiting | None = None
    receipt: str = field(init=False)

    def __post_init__(self) -> None:
        self.wish = wish_of(self.request)
        self.receipt = secrets.token_hex(16) if self.wish.wants_receipt else ""

    def most(self, grid: Grid, own_tokens: int) -> int:
        """Give the deepest boundary that may be restored behind `own_tokens` tokens of the engine's own."""
        most = grid.limit(self.request)
        wished = own_tokens + self.wish.load_tokens
        if wished >= most:
            return most
        self.is_capped = True
        return wished // grid.step * grid.step

    @property
    def missing(self) -> Missing | None:
        if self.plan is None or not self.plan.is_looked_up:
            return None
        return self.plan.missing if self.shared_tokens is None else self._missing_shared

    def _missing_shared(self, group: int, first: int, end: int) -> Sequence[int]:
        """Give the missing blocks where another request's look-up covers the first `shared_tokens` tokens only."""
        assert self.plan is not None
        part = self.plan.groups.get(group)
        size = part.group.block_tokens if part is not None else 1
        looked_up = max(first, min(end, (self.shared_tokens or 0) // size))
        found = self.plan.missing(group, first, looked_up) if looked_up > first else ()
        return [*found, *range(looked_up, end)]

    def take_plan(self, plan: Plan, shared_tokens: int | None = None) -> None:
        """Note the plan that restores it; `shared_tokens` of the prompt are covered by another request's plan."""
        self.plan, self.shared_tokens = plan, shared_tokens

    def ready_from(self, plan: Plan, start: int) -> int:
        """Count the tokens after the first `start` that can be restored now."""
        ready = plan.ready_from(start)
        return ready if self.shared_tokens is None else min(ready, self.shared_tokens - start)

    def forget_blocks(self) -> None:
        """Forget found and offered blocks, because the weights may have changed."""
        if self.plan is not None and not self.given.tokens:
            self.unasked = "weights_unread"
        self.plan = self.awaited = self.shared_tokens = None
        self.longer = {}
        self.cursor = SaveCursor()

    def count_miss(self, plan: Plan, counters: Counters) -> None:
        """Count, once for each admission, why a request that asked got nothing."""
        if not self.is_missed and plan.done_reason != "complete":
            self.is_missed = True
            counters.add(f"misses_{plan.why or plan.done_reason or 'deadline'}")

    def answer(self, told: Handoff | None = None) -> dict[str, Any] | None:
        """Give the answer's fields that its client requested; `told`: the hand-off for another engine."""
        return answer(self.wish, self.given, self._why_no_more(), told, self.receipt)

    def _why_no_more(self) -> str:
        plan = self.plan
        reason = (plan.left_for or plan.why or plan.done_reason or "") if plan is not None else ""
        if reason not in {"", "complete"}:
            return reason
        if self.is_capped:
            return "max_load_tokens"
        if plan is None:
            return self.unasked or ("" if self.given.tokens else "no_sidecar")
        if not self.given.tokens and (self.shared_tokens is not None or self.has_followed):
            return "shared"
        return "" if self.given.tokens else "deadline"

    def admit(
        self, plan: Plan, start: int, tokens: int, asked_at_s: float | None, counters: Counters
    ) -> None:
        """Record the part of an offer that vLLM took, for counters, vLLM's metrics and the answer.

        `start`: the tokens before it.
        """
        plan.taken_from, plan.taken_tokens = start, tokens
        plan.asked_at_s = asked_at_s or 0.0
        if asked_at_s is not None:
            waited_ms = round((time.monotonic() - asked_at_s) * 1000)
            counters.add("restore_wait_ms", max(1, waited_ms))
        counters.add("restores_admitted")
        plan.given = self.given
        self.host_tokens = _host_tokens(plan, start, tokens)

    def loaded(self, plan: Plan, counters: Counters) -> None:
        """Count an admission whose load has arrived, for the answer and for counters."""
        start, tokens, given = plan.taken_from, plan.taken_tokens, self.given
        if plan.is_loadable:  # not known as it was admitted
            self.host_tokens = _host_tokens(plan, start, tokens)
        counters.add("tokens_restored", tokens)
        given.tokens += tokens
        given.host_tokens += self.host_tokens
        is_whole = start == plan.first_tokens and plan.boundary == start + tokens
        if not is_whole or plan.compute_ms is None:
            given.compute_ms = None
        elif given.compute_ms is not None:
            given.compute_ms += plan.compute_ms

    def asks(self) -> None:
        """Forget the last answer and offer, at a new query; time without room in vLLM is no part of a load."""
        self.waits = None
        if self.offer is not None:
            self.refused_at_s = time.monotonic()
        self.offer = None

    def answered(self) -> float | None:
        """End one admission's queries; gives the time of the first that counts, if any."""
        asked_at_s, self.first_ask_s, self.seen_s = self.first_ask_s, None, None
        if asked_at_s is not None:
            asked_at_s = max(asked_at_s, self.refused_at_s)
        self.gave_up = self.is_missed = False
        self.plans_opened = 0
        self.leader = None
        return asked_at_s

    def lose_load(self) -> None:
        """Note that its load has failed: vLLM computes what it was to bring."""
        self.host_tokens = 0
        self.reads = False


def _host_tokens(plan: Plan, start: int, tokens: int) -> int:
    """Count those of the `tokens` tokens after the first `start` that came from no vault.

    A model of several groups is counted by its full attention; without one, all of it counts as the vault's.
    """
    if not plan.is_from_vault:
        return tokens
    full = [part for part in plan.groups.values() if not part.group.tail]
    if not full:
        return 0
    return min(tokens, *(_local_tokens(part, start, start + tokens) for part in full))


def _local_tokens(part: PlanGroup, start: int, end: int) -> int:
    size = part.group.block_tokens
    blocks = 0
    for first, count, local in part.local:
        inside = min(first + count, end // size) - max(first, start // size)
        blocks += max(0, min(local, inside))
    return blocks * size


class Backlog:
    """Requests that vLLM has not given blocks yet, in order of arrival."""

    def __init__(self) -> None:
        self._length = 0

    def join(self, state: RequestState) -> None:
        state.ahead = self._length
        self._length += 1

    def begin(self, state: RequestState) -> None:
        """Remove a request that got blocks or ended; only the first call counts."""
        if not state.is_begun:
            state.is_begun = True
            self._length -= 1

    def ahead(self, state: RequestState) -> int:
        """Give an upper bound of the requests ahead: earlier ones may have begun since."""
        return 0 if state.is_begun else min(state.ahead, self._length - 1)
