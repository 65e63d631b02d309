"""The requests a scheduler side keeps: how many, and what a reset takes from them."""

from types import SimpleNamespace

import pytest
from tierkv.connectors.vllm import limits

from .support.engine import Request
from .support.scheduler import NOTHING, Bench


def test_a_reset_gives_back_what_was_fetched_ahead(bench: Bench) -> None:
    bench.new(Request("a", 41))
    bench.new(Request("b", 41, seed="b"))
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


def test_only_what_got_blocks_is_said_to_have_begun(bench: Bench) -> None:
    begun, aborted, _reset = [bench.new(Request(name, 41, seed=name)) for name in ("a", "b", "c")]
    bench.prefetch(3)
    bench.admit(begun, [], 0)
    bench.shim.request_finished(aborted)
    bench.shim.reset_cache()
    assert [frame.get("begun") for frame in bench.fake.expect("release", 3)] == [1, None, None]


@pytest.mark.parametrize(
    ("identifier", "plans"),
    [
        ("0a" * 32, 1),  # blake3 or sha256 of what is in the picture
        ("0a" * 64, 1),  # sha512
        ("my-cat", 0),
        ("0A" * 32, 0),
        ("0a" * 32 + "x", 0),
        ("renderer0-mm-1-image-0", 0),
    ],
)
def test_f25_a_picture_that_its_client_named_is_left_alone(
    identifier: str, plans: int, bench: Bench
) -> None:
    pictures = [SimpleNamespace(identifier="1b" * 32), SimpleNamespace(identifier=identifier)]
    request = bench.new(Request("r", 41, mm_features=pictures))
    assert bench.shim.status()["plans"] == plans
    assert len(bench.step({"r": 41}, r=list(range(1, 11))).saves) == 10 * plans
    assert plans or bench.ask(request) == NOTHING


def test_a_request_says_how_many_wait_before_it(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.new(Request(name, 41, seed=name))
    said = [bench.prefetch(number).get("ahead") for number in (1, 2, 3)]
    assert said == [None, 1, 2]


def test_what_was_begun_or_ended_waits_no_longer(bench: Bench) -> None:
    first, second, third, fourth = [Request(name, 41, seed=name) for name in "abcd"]
    bench.new(first)
    bench.new(second)
    bench.admit(first, [], 0)
    bench.admit(first, [], 0)  # again, after it was preempted
    bench.shim.request_finished(first)
    bench.shim.request_finished(second)
    bench.new(third)
    bench.new(fourth)
    assert [bench.prefetch(number).get("ahead") for number in (3, 4)] == [None, 1]
