"""What a client says of one request in `kv_transfer_params`: how much is restored and saved, and the answer."""

import re
from dataclasses import replace
from typing import Any

import pytest
from tierkv.connectors.vllm.requests.answers import (
    ALL_TOKENS,
    NO_WISH,
    Given,
    Wish,
    answer,
    wish_of,
)

from .support.engine import Request, connector_of
from .support.scheduler import ASK_AGAIN, NOTHING, Bench

pytestmark = pytest.mark.usefixtures("engine_core_started")

TOKENS = 41


def asked(bench: Bench, name: str = "r", **params: Any) -> Request:
    return bench.new(Request(name, TOKENS, kv_transfer_params=params))


def restore(bench: Bench, request: Request, blocks: int, local: int) -> None:
    """Places and admits the first blocks of a prompt, `local` of which no vault had to bring."""
    prefetch = bench.prefetch()
    bench.boundary(prefetch, blocks * 4, {0: b"\xff\xff"})
    bench.place(prefetch, 0, *range(blocks), local=local)
    bench.done(prefetch)
    assert bench.answer(request) == (blocks * 4, True)
    bench.admit(request, list(range(1, blocks + 1)), blocks * 4)


@pytest.mark.parametrize(
    ("params", "wish"),
    [
        (None, NO_WISH),
        ({}, NO_WISH),
        ({"max_load_tokens": 8, "max_offload_tokens": 0}, Wish(8, 0)),
        ({"tierkv": {}}, Wish(is_reported=True)),
        ({"tierkv": {"report": False}}, NO_WISH),
        ({"tierkv": {"sesion": "a"}}, Wish(is_reported=True, ignored=("tierkv.sesion",))),
        ({"tierkv": {"receipt": True}}, Wish(is_reported=True, wants_receipt=True)),
        ({"tierkv": {"receipt": 1}}, Wish(is_reported=True, ignored=("tierkv.receipt",))),
        ({"tierkv": "yes"}, Wish(ignored=("tierkv",))),
        ({"max_load_tokens": -1}, Wish(ignored=("max_load_tokens",))),
        ({"max_offload_tokens": True}, Wish(ignored=("max_offload_tokens",))),
    ],
)
def test_what_is_wrong_in_a_wish_is_ignored_and_named(params: Any, wish: Wish) -> None:
    assert wish_of(Request("r", 8, kv_transfer_params=params)) == wish


def hints(*payloads: Any, version: str = "1", kind: str = "tierkv") -> Any:
    """An envelope of vLLM's own type, as its API builds it."""
    protocol = pytest.importorskip("vllm.v1.kv_hints.protocol")
    actions = [
        protocol.KvHintAction(
            action_id=str(n), action_type=kind, action_version=version, payload=payload
        )
        for n, payload in enumerate(payloads)
    ]
    return protocol.KvHintsEnvelope(protocol_version="1", message_id="m", actions=actions)


@pytest.mark.parametrize("params", [None, {}, {"max_load_tokens": 8}, {"tierkv": "yes"}])
def test_vllms_own_session_is_a_session_and_requests_no_report(params: Any) -> None:
    request = Request("r", 8, kv_transfer_params=params)
    plain = wish_of(request)
    request.session_id = "chat-7"  # type: ignore[attr-defined]
    assert wish_of(request) == replace(plain, session="chat-7")


def test_a_session_in_the_parameters_goes_before_vllms_own() -> None:
    request = Request("r", 8, kv_transfer_params={"tierkv": {"session": "ours", "keep_s": 60}})
    request.session_id = "theirs"  # type: ignore[attr-defined]
    assert wish_of(request) == Wish(is_reported=True, session="ours", keep_s=60)
    request.kv_transfer_params = {"tierkv": {"keep_s": 60}}
    assert wish_of(request) == Wish(is_reported=True, session="theirs", keep_s=60)


@pytest.mark.parametrize("name", ["a" * 129, "line\n", 7, ["x"]])
def test_a_session_that_is_no_name_is_ignored_and_named(name: Any) -> None:
    request = Request("r", 8)
    request.session_id = name  # type: ignore[attr-defined]
    assert wish_of(request) == Wish(ignored=("tierkv.session",))


def test_hints_say_what_the_parameters_say() -> None:
    request = Request("r", 8)
    request.kv_hints = hints({"session": "a", "keep_s": 60}, {"keep_s": 90})  # type: ignore[attr-defined]
    assert wish_of(request) == Wish(is_reported=True, session="a", keep_s=90)
    request.kv_transfer_params = {"tierkv": {"release": True}}
    assert wish_of(request) == Wish(is_reported=True, session="a", keep_s=90, is_released=True)


@pytest.mark.parametrize("other", [{"version": "2"}, {"kind": "kvcr.pin"}])
def test_hints_of_others_say_nothing(other: dict[str, str]) -> None:
    request = Request("r", 8)
    request.kv_hints = hints({"session": "a"}, **other)  # type: ignore[attr-defined]
    assert wish_of(request) == NO_WISH


def test_no_more_is_restored_than_a_request_allows(bench: Bench) -> None:
    request = asked(bench, max_load_tokens=10)
    (group,) = bench.prefetch()["groups"]
    assert len(group["hashes"]) == 2 * 32  # whole blocks of 4 tokens
    restore(bench, request, 2, local=0)


def test_own_tokens_do_not_count_against_it(bench: Bench) -> None:
    hashes = Request("same", TOKENS).block_hashes
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(hashes[:3])}
    request = asked(bench, max_load_tokens=8)
    assert bench.ask(request, 12) == ASK_AGAIN
    (group,) = bench.prefetch()["groups"]
    assert (group["from"], len(group["hashes"])) == (3, 5 * 32)


def test_a_request_that_allows_none_waits_for_nothing(bench: Bench) -> None:
    request = asked(bench, max_load_tokens=0, tierkv={})
    assert bench.ask(request) == NOTHING
    assert bench.shim.request_finished(request) == {
        "tierkv": {"restored_tokens": 0, "why": "max_load_tokens"}
    }


def test_no_more_is_saved_than_a_request_allows(bench: Bench) -> None:
    request = asked(bench, max_offload_tokens=10)
    bench.held(bench.prefetch())
    bench.done(bench.prefetch(), "end_of_hit")
    assert bench.answer(request) == NOTHING
    bench.admit(request, [], 0)
    saves = bench.step({"r": 40}, r=list(range(1, 11))).saves
    assert [item.end_tokens for item in saves] == [4, 8]
    request.num_computed_tokens = 40
    assert bench.step({"r": 1}, r=list(range(1, 12))).saves == []
    assert bench.shim._requests["r"].cursor.due_tokens == ALL_TOKENS


def test_the_sources_of_a_restore_add_up(bench: Bench) -> None:
    request = asked(bench, tierkv={})
    restore(bench, request, 5, local=2)
    state = bench.shim._requests["r"]
    assert state.host_tokens == 8
    assert state.given.tokens == 0  # nothing has arrived yet
    bench.finish_load("r")
    assert state.given.tokens - state.given.host_tokens == 12


def test_blocks_that_were_the_engines_own_are_counted_nowhere(bench: Bench) -> None:
    request = asked(bench)
    prefetch = bench.prefetch()
    bench.boundary(prefetch, 20, {0: b"\xff\xff"})
    for first, local in ((0, 2), (2, 1)):
        bench.place(prefetch, first, *range(first, first + 2), local=local)
    bench.done(prefetch)
    assert bench.answer(request, 4) == (12, True)
    bench.admit(request, [1, 2, 3, 4], 12)
    assert bench.shim._requests["r"].host_tokens == 8  # one of the first two, one of the next


def test_the_answer_says_what_was_restored_from_where(bench: Bench) -> None:
    request = asked(bench, tierkv={"keep_s": 60})
    restore(bench, request, 5, local=2)
    bench.finish_load("r")
    said = bench.shim.request_finished(request)
    assert said is not None
    assert said["tierkv"].pop("waited_ms") >= 0
    assert said == {
        "tierkv": {
            "restored_tokens": 20,
            "sources": {"host": 8, "vault": 12},
            "ignored": ["tierkv.keep_s"],
        }
    }


def test_the_answer_says_why_nothing_was(bench: Bench) -> None:
    request = asked(bench, tierkv={})
    bench.held(bench.prefetch())
    bench.done(bench.prefetch(), "end_of_hit", why="never_stored")
    assert bench.answer(request) == NOTHING
    assert bench.shim.request_finished(request) == {
        "tierkv": {"restored_tokens": 0, "why": "never_stored"}
    }


def test_nobody_is_answered_who_did_not_ask(bench: Bench) -> None:
    connector = connector_of(bench.shim)
    request = asked(bench)
    assert connector.request_finished(request, []) == (False, None)
    adapted = Request("l", TOKENS, lora_request=object(), kv_transfer_params={"tierkv": {}})
    bench.new(adapted)
    assert connector.request_finished_all_groups(adapted, ()) == (
        False,
        {"tierkv": {"restored_tokens": 0, "why": "not_cacheable"}},
    )


def test_the_time_saved_is_a_forecast_less_a_measurement() -> None:
    given = Given(tokens=8, host_tokens=8, waited_s=0.25, compute_ms=1000)
    said = answer(Wish(is_reported=True), given, "")
    assert said is not None
    assert (said["tierkv"]["saved_ms"], said["tierkv"]["sources"]) == (750.0, {"host": 8})
    given.compute_ms = None
    assert "saved_ms" not in (answer(Wish(is_reported=True), given, "") or {})["tierkv"]


def test_a_receipt_is_named_to_the_sidecar_and_by_the_answer_of_what_was_restored(
    bench: Bench,
) -> None:
    request = asked(bench, tierkv={"receipt": True})
    name = bench.prefetch()["receipt"]
    assert re.fullmatch("[0-9a-f]{32}", name)
    restore(bench, request, 5, local=0)
    bench.finish_load("r")
    (released,) = bench.fake.expect("release", 1)
    assert (released["from"], released["tokens"]) == (0, 20)
    said = bench.shim.request_finished(request)
    assert said is not None
    assert said["tierkv"]["receipt"] == name


def test_nothing_restored_leaves_no_receipt(bench: Bench) -> None:
    request = asked(bench, tierkv={"receipt": True})
    bench.held(bench.prefetch())
    bench.done(bench.prefetch(), "end_of_hit", why="never_stored")
    assert bench.answer(request) == NOTHING
    assert "receipt" not in (bench.shim.request_finished(request) or {})["tierkv"]


def test_a_release_says_behind_which_tokens_of_the_engines_own_it_loaded(bench: Bench) -> None:
    request = asked(bench)
    prefetch = bench.prefetch()
    assert "receipt" not in prefetch
    bench.boundary(prefetch, 20, {0: b"\xff\xff"})
    bench.place(prefetch, 0, *range(5))
    bench.done(prefetch)
    assert bench.answer(request, 8) == (12, True)
    bench.admit(request, [1, 2, 3, 4, 5], 12)
    bench.finish_load("r")
    (released,) = bench.fake.expect("release", 1)
    assert (released["from"], released["tokens"]) == (8, 12)
