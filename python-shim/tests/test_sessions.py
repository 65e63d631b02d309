"""Which blocks the sidecar hears to be a session's, what a request may say of one; what is wrong harms nobody."""

from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.requests.answers import wish_of

from .support.engine import Request, make_group, make_state
from .support.scheduler import Bench

pytestmark = pytest.mark.usefixtures("engine_core_started")


@pytest.fixture
def shape() -> dict[str, Any]:
    return {"groups": [make_group(), make_state()]}


def ended(bench: Bench, **wish: Any) -> Request:
    """A request with 40 tokens, the first 30 of them its prompt."""
    request = Request("r", 40, num_prompt_tokens=30, kv_transfer_params={"tierkv": wish})
    bench.new(request)
    bench.shim.request_finished(request)
    return request


def test_a_request_that_ends_names_the_blocks_of_its_session(bench: Bench) -> None:
    request = ended(bench, session="chat", keep_s=60)
    (frame,) = bench.fake.expect("session")
    blocks, states = frame["groups"]
    assert (frame["session"], frame["keep_s"], frame["release"]) == ("chat", 60, 0)
    assert frame["namespace"] == bench.shim._naming.digest
    assert blocks["hashes"] == b"".join(request.block_hashes)
    assert (blocks["from"], states["class"]) == (0, "ssm")
    # The last state within the prompt, and those of the answer; earlier ones are superseded.
    assert states["from"] == 30 // 4 - 1


def test_a_request_without_a_session_names_none(bench: Bench) -> None:
    ended(bench, report=False)
    bench.fake.expect("release")
    assert "session" not in bench.kinds()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"session": "a"}, ("a", 0, False, ())),
        ({"session": "a", "keep_s": 60, "pin": True}, ("a", 60, False, ())),
        ({"session": "a", "pin": True}, ("a", limits.KEEP_S_MAX, False, ())),
        ({"session": "a", "pin": False, "release": True}, ("a", 0, True, ())),
        ({"session": ""}, ("", 0, False, ("session",))),
        ({"session": 7}, ("", 0, False, ("session",))),
        ({"session": "\ud800"}, ("", 0, False, ("session",))),
        ({"session": "a" * 129}, ("", 0, False, ("session",))),
        ({"session": "a", "keep_s": 0}, ("a", 0, False, ("keep_s",))),
        ({"session": "a", "keep_s": 1e9}, ("a", 0, False, ("keep_s",))),
        ({"session": "a", "keep_s": limits.KEEP_S_MAX + 1}, ("a", 0, False, ("keep_s",))),
        (
            {"session": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}, "pin": True},
            ("a", 3600, False, ()),
        ),
        ({"session": "a", "cache_control": {"type": "ephemeral"}}, ("a", 300, False, ())),
        (
            {"session": "a", "keep_s": 60, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ("a", 60, False, ()),
        ),
        (
            {"session": "a", "cache_control": {"type": "ephemeral", "ttl": "2h"}},
            ("a", 0, False, ("cache_control",)),
        ),
        (
            {"session": "a", "cache_control": {"type": "ephemeral", "ttl": ["1h"]}},
            ("a", 0, False, ("cache_control",)),
        ),
        ({"session": "a", "cache_control": "1h"}, ("a", 0, False, ("cache_control",))),
        (
            {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ("", 0, False, ("cache_control",)),
        ),
        ({"session": "a", "release": "yes"}, ("a", 0, False, ("release",))),
        (
            {"keep_s": 60, "pin": True, "release": True},
            ("", 0, False, ("keep_s", "pin", "release")),
        ),
    ],
)
def test_what_may_be_said_of_a_session(said: dict[str, Any], found: tuple[Any, ...]) -> None:
    wish = wish_of(Request("r", 8, kv_transfer_params={"tierkv": said}))
    ignored = tuple(name.removeprefix("tierkv.") for name in wish.ignored)
    assert (wish.session, wish.keep_s, wish.is_released, ignored) == found


def test_what_is_wrong_is_counted_and_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        bench.new(Request(name, 40, kv_transfer_params={"tierkv": {"keep_s": "long"}}))
    assert bench.shim.counters.take_changes()["wishes_ignored"] == 2
    assert [record.args for record in caplog.records if "ignored" in record.msg] == [
        ("'tierkv.keep_s'",)
    ]
