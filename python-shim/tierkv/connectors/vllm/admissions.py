"""Owns what is noted when vLLM takes an offer: where the tokens came from, and how long the request waited."""

import time
from typing import Any

from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.plan_group import PlanGroup
from tierkv.connectors.vllm.plans import Plan


def host_tokens(plan: Plan, start: int, tokens: int) -> int:
    """Count those of the `tokens` tokens after the first `start` that no vault had to bring.

    A model of several groups is counted by its full attention; without one all of it came from the farthest place.
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


def note_admission(
    state: Any,
    plan: Plan,
    taken: tuple[int, int],
    asked_at_s: float | None,
    counters: Counters,
) -> None:
    """Keep what a request was given, for the counters, for vLLM's metrics and for its answer.

    `taken`: the tokens before it, and its own.
    """
    start, tokens = taken
    plan.taken_from, plan.taken_tokens = taken
    plan.asked_at_s = asked_at_s or 0.0
    if asked_at_s is not None:
        waited_ms = round((time.monotonic() - asked_at_s) * 1000)
        counters.add("restore_wait_ms", max(1, waited_ms))
    counters.add("restores_admitted")
    counters.add("tokens_restored", tokens)
    plan.given = given = state.given
    given.tokens += tokens
    state.host_tokens = host_tokens(plan, start, tokens)
    given.host_tokens += state.host_tokens
    is_whole = start == plan.first_tokens and plan.boundary == start + tokens
    if not is_whole or plan.compute_ms is None:
        given.compute_ms = None
    elif given.compute_ms is not None:
        given.compute_ms += plan.compute_ms
