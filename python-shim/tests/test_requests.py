"""The requests a scheduler side keeps: how many, and what a reset takes from them."""

from collections.abc import Iterator

import pytest
from tierkv.connectors.vllm import compat, limits

from .support.engine import Request
from .support.scheduler import NOTHING, Bench
from .support.sidecar import FakeSidecar


@pytest.fixture
def bench(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(compat, "none_hash", lambda: bytes(range(32)))
    with FakeSidecar(socket_path) as sidecar:
        made = Bench(socket_path, sidecar)
        yield made
        made.shim.shutdown()


def test_a_reset_gives_back_what_was_fetched_ahead(bench: Bench) -> None:
    bench.new(Request("a", 41))
    bench.new(Request("b", 41))
    bench.prefetch(2)
    assert bench.shim.reset_cache()
    assert len(bench.releases(2)) == 2
    assert bench.shim.status()["plans"] == 0


def test_requests_beyond_the_limit_run_untouched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUESTS_MAX", 1)
    bench.new(Request("a", 41))
    second = bench.new(Request("b", 41))
    assert bench.ask(second) == NOTHING
    bench.shim.request_finished(second)
    assert bench.shim.status()["requests"] == 1
