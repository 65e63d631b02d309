"""What `kv_role` makes of an engine, what a producer tells of a prompt, and what of it a consumer waits for."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tierkv.connectors.vllm.requests.answers import Handoff, Wish, wish_of

from .support.engine import BLOCK_TOKENS, Request, make_group, make_state
from .support.scheduler import ASK_AGAIN, NOTHING, Bench
from .support.sidecar import FakeSidecar, wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")

#: Ten blocks of 4, and a token that is always computed.
TOKENS = 41
KEY = "0123456789abcdef" * 2

Start = Callable[..., Bench]


@pytest.fixture
def start(socket_path: str) -> Iterator[Start]:
    made: list[Bench] = []
    with FakeSidecar(socket_path) as sidecar:

        def start(role: str, **options: Any) -> Bench:
            made.append(Bench(socket_path, sidecar, role=role, **options))
            return made[0]

        yield start
        made[0].shim.shutdown()


def compute(bench: Bench, name: str = "r", tokens: int = 40, **ours: Any) -> Any:
    """Computes and ends a prompt of TOKENS tokens; gives what its answer says."""
    params = {"tierkv": ours} if ours else None
    request = bench.new(Request(name, TOKENS, kv_transfer_params=params))
    if bench.ask(request) == ASK_AGAIN:
        bench.done(bench.prefetch(), "end_of_hit")
        assert bench.answer(request) == NOTHING
    bench.admit(request, [], 0)
    bench.step({name: tokens}, **{name: list(range(1, 12))})
    return bench.shim.request_finished(request)


def handed(bench: Bench, said: Any, tokens: int = TOKENS, **options: Any) -> Request:
    params = {"tierkv": {"handoff": said}}
    return bench.new(Request("c", tokens, kv_transfer_params=params, **options))


def counted(bench: Bench, name: str) -> int:
    return bench.shim.counters.get(f"handoffs_{name}")


def said_by_a_producer(bench: Bench, tokens: int = 40) -> dict[str, Any]:
    """What a producer of the same name would tell of the prompt."""
    request = Request("same", TOKENS)
    wait_until(bench.shim._name_ourselves, "the name")
    key = bench.shim._handoffs._key(request, tokens)
    return {"tokens": tokens, "key": key, "block_tokens": BLOCK_TOKENS}


@pytest.mark.parametrize(
    ("said", "wish"),
    [
        (True, Wish(tells=True)),
        (False, Wish()),
        ({"tokens": 8, "key": KEY}, Wish(handoff=Handoff(8, KEY))),
        ({"tokens": 8, "key": KEY, "block_tokens": 128}, Wish(handoff=Handoff(8, KEY, 128))),
        ({"tokens": 8, "key": KEY, "block_tokens": -1}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": 8, "key": KEY, "block_tokens": True}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": 8, "key": KEY, "block_tokens": "8"}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": 0, "key": KEY}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": True, "key": KEY}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": 8, "key": KEY[1:]}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": 8, "key": 7}, Wish(ignored=("tierkv.handoff",))),
        ({"tokens": 8}, Wish(ignored=("tierkv.handoff",))),
        ("all of it", Wish(ignored=("tierkv.handoff",))),
    ],
)
def test_what_may_be_said_of_a_handoff(said: Any, wish: Wish) -> None:
    assert wish_of(Request("r", 8, kv_transfer_params={"tierkv": {"handoff": said}})) == wish


def test_a_producer_tells_of_every_prompt_and_looks_nothing_up(start: Start) -> None:
    bench = start("kv_producer")
    said = compute(bench)
    assert said == {"tierkv": {"handoff": said_by_a_producer(bench)}}
    assert counted(bench, "told") == 1
    assert "prefetch" not in bench.kinds()
    told = [frame for frame in bench.fake.frames if frame["t"] == "counts"]
    rows = [
        row for frame in (*told, bench.shim._unasked.take()) for row in frame.get("unasked", ())
    ]
    assert [row[1] for row in rows] == ["producer"]


def test_a_producer_tells_of_no_more_than_was_saved(start: Start) -> None:
    bench = start("kv_producer")
    assert compute(bench, tokens=13)["tierkv"]["handoff"]["tokens"] == 12
    assert compute(bench, "short", tokens=3) is None
    request = bench.new(Request("w", TOKENS, kv_transfer_params={"max_offload_tokens": 9}))
    bench.step({"w": 40}, w=list(range(1, 12)))
    told = bench.shim.request_finished(request)
    assert told is not None
    assert told["tierkv"]["handoff"]["tokens"] == 8


def test_a_producer_with_states_tells_up_to_the_deepest_one(start: Start) -> None:
    bench = start("kv_producer", groups=[make_group(), make_state()])
    request = bench.new(Request("r", TOKENS))
    bench.step({"r": 40}, r=list(range(1, 12)))
    for end in (12, 20, 16):
        bench.hand_over(request, (1, 5, end))
    told = bench.shim.request_finished(request)
    assert told is not None
    assert told["tierkv"]["handoff"]["tokens"] == 20
    assert compute(bench, "without") is None


def test_a_consumer_saves_nothing(start: Start) -> None:
    bench = start("kv_consumer")
    request = bench.new(Request("r", TOKENS))
    bench.held(bench.prefetch())
    bench.done(bench.prefetch(), "end_of_hit")
    assert bench.answer(request) == NOTHING
    bench.admit(request, [], 0)
    assert bench.step({"r": 40}, r=list(range(1, 12))).saves == []
    assert bench.shim.request_finished(request) is None


def test_who_does_both_tells_who_asks(start: Start) -> None:
    bench = start("kv_both")
    assert compute(bench, handoff=True) == {"tierkv": {"handoff": said_by_a_producer(bench)}}


def test_who_does_both_tells_nobody_else(start: Start) -> None:
    assert compute(start("kv_both")) is None


def test_the_sidecar_is_asked_to_wait_and_may_be_silent_so_long(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("kv_consumer")
    request = handed(bench, said_by_a_producer(bench))
    prefetch = bench.prefetch()
    assert prefetch["handoff"] == 40
    with monkeypatch.context() as patched:
        patched.setattr(bench.shim._budget, "stall_s", 0.0)
        assert [bench.ask(request) for _ in range(3)] == [ASK_AGAIN] * 3
    bench.boundary(prefetch, 40, {0: b"\xff\xff"})
    bench.place(prefetch, 0, *range(10))
    assert bench.answer(request) == (40, True)
    assert (counted(bench, "taken"), counted(bench, "foreign")) == (1, 0)


def test_a_prompt_that_is_handed_over_is_worth_asking_for(start: Start) -> None:
    bench = start("kv_consumer")
    bench.shim._book.tokens_min = 1000
    handed(bench, said_by_a_producer(bench))
    assert bench.prefetch()["handoff"] == 40


def test_what_the_engine_has_itself_is_not_waited_for(start: Start) -> None:
    bench = start("kv_consumer")
    hashes = Request("same", TOKENS).block_hashes
    bench.pool.cached = {block_hash: n + 1 for n, block_hash in enumerate(hashes[:5])}
    handed(bench, said_by_a_producer(bench, tokens=20))
    assert "handoff" not in bench.prefetch()


@pytest.mark.parametrize(
    "wrong", [{"tokens": 36}, {"tokens": 4000}, {"tokens": 39}, {"key": KEY}, {"seed": "another"}]
)
def test_a_handoff_that_is_anothers_is_counted_and_not_waited_for(
    start: Start, wrong: dict[str, Any]
) -> None:
    bench = start("kv_consumer")
    seed = {"seed": wrong.pop("seed")} if "seed" in wrong else {}
    handed(bench, {**said_by_a_producer(bench), **wrong}, **seed)
    assert "handoff" not in bench.prefetch()
    assert (counted(bench, "taken"), counted(bench, "foreign")) == (0, 1)
