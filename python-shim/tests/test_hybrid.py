"""The scheduler side of a hybrid model: a boundary is one set, offered whole or not at all."""

from typing import Any

import pytest

from .support.engine import Blocks, Request, make_group, make_state
from .support.scheduler import NOTHING, Bench

pytestmark = pytest.mark.usefixtures("engine_core_started")

HELD = {0: b"\xff\xff", 1: b"\x04\x00"}


@pytest.fixture
def shape() -> dict[str, Any]:
    return {"groups": [make_group(), make_state()]}


def offered(bench: Bench) -> Request:
    """A request of ten blocks whose third boundary is fetched."""
    request = bench.new(Request("r", 41))
    prefetch = bench.prefetch()
    bench.boundary(prefetch, 12, HELD)
    bench.place(prefetch, 0, 10, 11, 12)
    bench.place(prefetch, 2, 20, group=1)
    bench.done(prefetch, "end_of_hit")
    assert bench.answer(request) == (12, True)
    return request


def test_a_boundary_is_admitted_as_all_attention_and_its_state(bench: Bench) -> None:
    request = offered(bench)
    tables = ([1, 2, 3, 4], [0, 0, 9])
    bench.shim.update_state_after_alloc(request, Blocks(tables[0], (tables[1],)), 12)
    kv, ssm = bench.step().loads
    assert (kv.group, kv.block_ids, kv.slots, kv.last) == (0, [1, 2, 3], [10, 11, 12], False)
    assert (ssm.group, ssm.block_ids, ssm.slots, ssm.last) == (1, [9], [20], True)


def test_a_local_hit_behind_the_boundary_leaves_nothing_to_offer(bench: Bench) -> None:
    request = offered(bench)
    assert bench.ask(request, 8) == (4, True)
    assert bench.ask(request, 12) == NOTHING
    assert bench.ask(request, 16) == NOTHING


def test_a_set_that_is_not_whole_is_not_offered(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    prefetch = bench.prefetch()
    bench.boundary(prefetch, 12, HELD)
    bench.place(prefetch, 0, 10, 11, 12)
    bench.done(prefetch, "bad_record")
    assert bench.answer(request) == NOTHING


def test_blocks_that_were_not_fetched_are_computed_not_loaded(bench: Bench) -> None:
    request = offered(bench)
    tables = ([1, 2, 3, 4], [0, 8, 9])  # a state nobody has fetched
    bench.shim.update_state_after_alloc(request, Blocks(tables[0], (tables[1],)), 12)
    (part,) = bench.step().loads
    assert (part.arena, part.block_ids, part.last) == (-1, [1, 2, 3], True)
    assert bench.shim.counters.get("restores_mismatched") == 1
    assert bench.shim.counters.get("tokens_restored") == 0
    bench.finish_load("r")
    assert len(bench.releases(1)) == 1


def test_what_the_engine_holds_whole_is_not_fetched(bench: Bench) -> None:
    request = Request("r", 41)
    hashes = request.block_hashes
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(hashes[:5])}
    bench.pool.cached_by_group = {(1, hashes[2]): 30}
    bench.new(request)
    kv, ssm = bench.prefetch()["groups"]
    assert (kv["from"], ssm["from"], ssm["class"]) == (3, 3, "ssm")


def test_states_are_saved_where_they_are_handed_over_unless_held(bench: Bench) -> None:
    request = bench.new(Request("r", 41))
    bench.boundary(bench.prefetch(), 0, HELD)
    bench.done(bench.prefetch(), "end_of_hit")
    bench.answer(request)
    (item,) = bench.hand_over(request, (1, 9, 12), (1, 8, 16)).saves  # that at 12 is held
    assert (item.group, item.block_id, item.end_tokens) == (1, 8, 16)
    assert bench.hand_over(Request("unknown", 41), (1, 9, 12)).saves == []


def test_a_state_of_a_step_with_drafts_is_not_saved(bench: Bench) -> None:
    """Rejected drafts may be in it: what was accepted is known only after the step."""
    request = bench.new(Request("r", 41))
    assert bench.hand_over(request, (1, 9, 12), drafts=2).saves == []
    assert bench.shim.counters.get("states_with_drafts") == 1
    assert len(bench.hand_over(request, (1, 9, 12)).saves) == 1


def test_prompts_no_block_fits_into_are_counted_and_named_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tierkv.shim"):
        for number, tokens in enumerate((3, 4, 5)):
            bench.new(Request(str(number), tokens))
    assert bench.shim.counters.get("prompts_below_block") == 2
    assert caplog.text.count("is not longer than one block of this hybrid model (4 tokens)") == 1


def test_a_restore_that_cannot_be_filled_is_not_tried_again(bench: Bench) -> None:
    """vLLM asks anew for a request whose load failed, and would allocate the same blocks for ever."""
    request = offered(bench)
    bench.shim.update_state_after_alloc(request, Blocks([1, 2, 3, 4], ([0, 8, 9],)), 12)
    bench.step()
    bench.finish_load("r")
    assert bench.ask(request) == NOTHING
    assert len(bench.fake.expect("prefetch")) == 1
