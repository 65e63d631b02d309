"""Requests that nothing is asked for: the sidecar hears why, once each, and no more than it is told at a time."""

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.requests.unasked import Unasked

from .support.engine import Request
from .support.scheduler import NOTHING, Bench
from .support.sidecar import wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are sent as often."""
    monkeypatch.setattr(limits, "PING_EVERY_S", 0.02)


def heard(bench: Bench) -> list[list[object]]:
    """The rows of all `counts` frames, once there are any."""

    def rows() -> list[list[object]]:
        frames = [frame for frame in list(bench.fake.frames) if frame["t"] == "counts"]
        return [list(row) for frame in frames for row in frame.get("unasked", [])]

    wait_until(lambda: bool(rows()), "the reason of a request")
    return rows()


def test_a_prompt_of_less_than_a_block_is_below_a_block(bench: Bench) -> None:
    bench.new(Request("r", 3))
    assert heard(bench) == [["r", "below_block", 3, 0]]


def test_a_request_that_allows_no_restore_is_told_so(bench: Bench) -> None:
    request = Request("r", 40)
    request.kv_transfer_params = {"max_load_tokens": 0}
    bench.new(request)
    assert heard(bench) == [["r", "max_load_tokens", 40, 0]]


def test_a_repeated_prompt_lies_in_the_engines_own_cache(bench: Bench) -> None:
    """Also before anything was measured: nothing of it could be restored."""
    request = Request("r", 40)
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(request.block_hashes)}
    bench.new(request)
    assert bench.ask(request, 36) == NOTHING
    assert heard(bench) == [["r", "own_cache", 40, 36]]
    assert "prefetch" not in bench.kinds()


def test_few_tokens_are_not_worth_asking(bench: Bench) -> None:
    bench.shim._book.tokens_min = 100
    bench.new(Request("r", 40))
    assert heard(bench) == [["r", "not_worth_asking", 40, 0]]


def test_what_tokens_do_not_name_is_not_cacheable(bench: Bench) -> None:
    request = Request("r", 40)
    request.lora_request = object()
    bench.new(request)
    assert heard(bench) == [["r", "not_cacheable", 40, 0]]


def test_who_wants_no_prefix_cache_is_not_reading(bench: Bench) -> None:
    request = Request("r", 40)
    request.skip_reading_prefix_cache = True
    bench.new(request)
    assert heard(bench) == [["r", "not_reading", 40, 0]]
    assert bench.shim.counters.get("prompts_not_reading") == 1


def test_without_a_name_nothing_is_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "none_hash", lambda: None)
    bench.new(Request("r", 40))
    assert heard(bench) == [["r", "unnamed", 40, 0]]


def test_what_is_asked_for_has_no_such_reason(bench: Bench) -> None:
    bench.new(Request("asked", 40))
    bench.prefetch()
    bench.new(Request("short", 3))
    assert [row[0] for row in heard(bench)] == ["short"]


def test_a_clients_trace_is_told_with_a_request_asked_for_or_not(bench: Bench) -> None:
    context = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    bench.new(Request("asked", 40, trace_headers=context))
    assert bench.prefetch()["traceparent"] == context["traceparent"]
    bench.new(Request("short", 3, trace_headers=context))
    assert heard(bench) == [["short", "below_block", 3, 0, context["traceparent"]]]


def test_a_trace_that_no_client_could_mean_is_left_out(bench: Bench) -> None:
    bench.new(Request("r", 40, trace_headers={"traceparent": "0" * 65}))
    assert "traceparent" not in bench.prefetch()


def test_beyond_the_ceiling_the_oldest_are_forgotten() -> None:
    unasked = Unasked()
    for number in range(limits.UNASKED_ROWS_MAX + 1):
        unasked.note(Request(f"r{number}", 3), "below_block")
    rows = unasked.take()["unasked"]
    assert [len(rows), rows[0][0]] == [limits.UNASKED_ROWS_MAX, "r1"]
    assert unasked.take() == {}
