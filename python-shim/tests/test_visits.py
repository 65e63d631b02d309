"""What is saved first where not all can be: blocks seen before, conversations, wished ones; never one behind a gap."""

from collections.abc import Callable
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import StepReceipts
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.cursors import SaveCursor
from tierkv.connectors.vllm.requests.visits import Visits
from tierkv.connectors.vllm.save.saves import SavePlanner

from .support.engine import BLOCK_TOKENS, Pool, Request, chain, make_group
from .support.scheduler import Bench as Scheduler
from .support.scheduler import missing_where

Holds = Callable[[int, int], bool]


def nothing(_group: int, _index: int) -> bool:
    return False


def prompt(name: str, *parts: tuple[str, int]) -> Request:
    """A prompt of parts of so many blocks; a part that others have before the same parts is the same blocks."""
    request = Request(name, BLOCK_TOKENS * sum(blocks for _, blocks in parts))
    request.block_hashes, seed = [], ""
    for part, blocks in parts:
        seed += part
        request.block_hashes += chain(seed, blocks)
    return request


class Bench:
    """A planner without slots, whose engine keeps every block under a place of its own."""

    def __init__(self) -> None:
        self.pool = Pool(400)
        self.counters = Counters()
        self.planner = SavePlanner(Grid([make_group()], BLOCK_TOKENS), 1, 400, self.counters)
        self.planner.bind_pool(self.pool)
        self.planner.hear(StepReceipts(slots=0))
        self._names: dict[int, str] = {}

    def visit(
        self, request: Request, *, holds: Holds | None = nothing, returns: bool = False
    ) -> SaveCursor:
        cursor = SaveCursor(returns=returns)
        for index, block_hash in enumerate(request.block_hashes):
            place = self.pool.cached.setdefault(block_hash, len(self.pool.cached) + 1)
            self._names.setdefault(place, f"{request.request_id}{index}")
        table = [self.pool.cached[block_hash] for block_hash in request.block_hashes]
        missing = missing_where(holds)
        self.planner.offer(request, cursor, request.num_tokens, missing, lambda: [table])
        self.planner.next_step()
        return cursor

    def saved(self, slots: int = 400) -> list[str]:
        """What goes into so many slots, by the request that computed it."""
        self.planner.hear(StepReceipts(slots=slots))
        items = self.planner.next_step()[1]
        self.planner.hear(StepReceipts(slots=0))
        return [self._names[item.block_id] for item in items]


def test_a_block_that_is_seen_again_goes_before_those_that_are_not() -> None:
    bench = Bench()
    bench.visit(prompt("a", ("once", 2)))
    bench.visit(prompt("b", ("text", 2), ("b", 1)))
    bench.visit(prompt("c", ("text", 2), ("c", 1)))
    assert bench.saved() == ["b0", "b1", "a0", "a1", "b2", "c2"]
    assert bench.counters.get("saves_returning") == 2
    assert bench.counters.get("saves_first_time") == 4


def test_a_conversations_next_turn_goes_before_with_all_before_it() -> None:
    bench = Bench()
    bench.visit(prompt("a", ("talk", 2)))
    bench.visit(prompt("b", ("once", 2)))
    bench.visit(prompt("c", ("talk", 2), ("answer", 2)), returns=True)
    assert bench.saved(3) == ["a0", "a1", "c2"]
    assert bench.saved() == ["c3", "b0", "b1"]


def test_without_an_answered_look_up_nothing_goes_before_what_it_stands_on() -> None:
    bench = Bench()
    bench.visit(prompt("a", ("talk", 2)))
    later = prompt("c", ("talk", 2), ("answer", 1))
    later.num_computed_tokens = 2 * BLOCK_TOKENS
    bench.visit(later, holds=None, returns=True)
    assert bench.saved() == ["a0", "a1", "c2"]


def test_behind_a_lost_block_that_two_prompts_share_nothing_of_either_is_saved() -> None:
    bench = Bench()
    shared = prompt("a", ("text", 2), ("a", 1))
    bench.visit(shared)
    bench.visit(prompt("b", ("text", 2), ("b", 1)))
    del bench.pool.cached[shared.block_hashes[1]]
    assert bench.saved() == ["a0"]
    assert bench.counters.get("dropped_save_evicted") == 3
    assert bench.counters.get("returning_evicted") == 1


def test_what_was_refused_comes_again_first_of_its_kind_and_once() -> None:
    bench = Bench()
    text = ("text", 2)
    bench.visit(prompt("a", text))
    bench.planner.hear(StepReceipts(slots=2))
    ticket, _ = bench.planner.next_step()
    bench.visit(prompt("b", ("once", 1)))
    bench.planner.hear(StepReceipts({ticket: 1}, {ticket: 2}, 0))
    assert bench.saved(3) == ["a0", "a1", "b0"]
    ticket = bench.planner._ticket
    bench.visit(prompt("c", text))  # offered again while it is copied
    bench.planner.hear(StepReceipts({ticket: 1}, {ticket: 3}, 0))
    assert bench.saved() == ["a0", "a1", "b0"]
    assert bench.planner.waiting == 0


def test_only_the_first_request_that_goes_on_from_an_end_is_a_next_turn() -> None:
    visits, first = Visits(), prompt("a", ("talk", 3))
    first.num_prompt_tokens = 2 * BLOCK_TOKENS
    assert not visits.goes_on(first)
    visits.ended(first, BLOCK_TOKENS)
    assert not visits.goes_on(prompt("b", ("other", 4)))
    turn = prompt("c", ("talk", 3), ("more", 1))
    assert visits.goes_on(turn)
    assert not visits.goes_on(turn)


def test_an_answer_that_its_client_changed_is_gone_on_from_at_the_prompts_end() -> None:
    visits, first = Visits(), prompt("a", ("talk", 2), ("answer", 2))
    first.num_prompt_tokens = 2 * BLOCK_TOKENS + 1
    visits.ended(first, BLOCK_TOKENS)
    assert visits.goes_on(prompt("b", ("talk", 2), ("changed", 2)))


def test_ends_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROMPT_ENDS_MAX", 2)
    visits = Visits()
    for name in "abc":
        visits.ended(prompt(name, (name, 1)), BLOCK_TOKENS)
    assert [visits.goes_on(prompt(name, (name, 1))) for name in "abc"] == [False, True, True]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, 0),
        ({"session": "s"}, 1),
        ({"session": "s", "release": True}, 0),
        ({"handoff": True}, 1),
    ],
)
def test_the_sidecar_hears_which_requests_are_saved_first(
    bench: Scheduler, wish: dict[str, Any], expected: int
) -> None:
    bench.new(Request("r", 17, kv_transfer_params={"tierkv": wish}))
    assert bench.prefetch().get("returns", 0) == expected


def test_a_request_that_goes_on_from_an_ended_one_is_told(bench: Scheduler) -> None:
    first = bench.new(prompt("a", ("talk", 3)))
    assert "returns" not in bench.prefetch()
    bench.shim.request_finished(first)
    bench.new(prompt("b", ("talk", 3), ("more", 2)))
    assert bench.prefetch(2)["returns"] == 1
