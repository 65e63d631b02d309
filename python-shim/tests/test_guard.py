"""An exception in any entry point: counted, said once, tierKV off, and vLLM gets what it was promised."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tierkv.connectors.vllm.api import compat, contract
from tierkv.connectors.vllm.api.metadata import LoadPart, SaveItem, StepMetadata, StepReceipts
from tierkv.connectors.vllm.connector import TierKVConnector
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.guard import CannotRecomputeError, Failures, guarded
from tierkv.connectors.vllm.restore.loads import NO_ARENA

from .support.engine import (
    Blocks,
    Request,
    connector_of,
    scheduled,
    step_output,
)
from .support.scheduler import Bench
from .support.sidecar import FakeSidecar, wait_until
from .support.worker import HASHES, Rank

pytestmark = pytest.mark.usefixtures("engine_core_started")

NOTHING = (0, False)
#: Entry points that do nothing, and those of the class, which have no half.
BARE = {"wait_for_layer_load", "save_kv_layer", "build_kv_connector_stats", "build_prom_metrics"}
BARE |= {"supports_sleep_mode", "requires_kv_delivery"}
#: It calls one that is guarded.
BARE |= {"request_finished_all_groups"}


class BrokenError(Exception):
    """Raised where a test wants it."""


def raiser(*_: Any, **__: Any) -> None:
    raise BrokenError


class BrokenHalf:
    """Every method raises but what the guard itself needs."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.failures = Failures(self.counters)
        self.restore_times = None

    def turn_off(self, why: str) -> None:
        self.failures.turn_off(why)

    def __getattr__(self, name: str) -> Any:
        raise BrokenError(name)


def test_every_entry_point_is_guarded() -> None:
    for name in contract.public(TierKVConnector) - BARE:
        assert hasattr(vars(TierKVConnector)[name], "__wrapped__"), name


SCHEDULER_CALLS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "bind_gpu_block_pool": ((None,), None),
    "on_new_request": ((Request("r", 8),), None),
    "get_num_new_matched_tokens": ((Request("r", 8), 0), NOTHING),
    "update_state_after_alloc": ((Request("r", 8), Blocks([1]), 4), None),
    "build_connector_meta": ((scheduled({}, {}),), StepMetadata(is_off=True)),
    "update_connector_output": ((step_output({"r"}, {1: 1}),), None),
    "request_finished": ((Request("r", 8), [1]), (False, None)),
    "request_finished_all_groups": ((Request("r", 8), ([1],)), (False, None)),
    "has_pending_push_work": ((), False),
    "has_pending_block_frees": ((), False),
    "reset_cache": ((), True),
    "set_xfer_handshake_metadata_pp_aware": (({},), None),
    "get_kv_connector_stats": ((), None),
    "shutdown": ((), None),
}
WORKER_CALLS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "register_kv_caches": (({},), None),
    "bind_connector_metadata": ((StepMetadata(),), None),
    "get_handshake_metadata": ((), None),
    "handle_preemptions": ((StepMetadata(),), None),
    "start_load_kv": ((None,), None),
    "wait_for_save": ((), None),
    "get_finished": ((set(),), (None, None)),
    "get_block_ids_with_load_errors": ((), set()),
    "build_connector_worker_meta": ((), None),
    "get_kv_connector_stats": ((), None),
    "shutdown": ((), None),
}
MINOR = {
    "has_pending_push_work",
    "has_pending_block_frees",
    "set_xfer_handshake_metadata_pp_aware",
    "get_kv_connector_stats",
    "get_handshake_metadata",
    "shutdown",
}


@pytest.mark.parametrize(
    ("side", "name"),
    [("scheduler", name) for name in SCHEDULER_CALLS] + [("worker", name) for name in WORKER_CALLS],
)
def test_even_with_nothing_that_works_no_entry_point_raises(
    side: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "is_alone", lambda _: True)
    half: Any = BrokenHalf()
    if name == "get_kv_connector_stats":
        half.counters.take_changes = raiser
    connector = connector_of(half)
    arguments, neutral = (SCHEDULER_CALLS if side == "scheduler" else WORKER_CALLS)[name]
    with caplog.at_level(logging.ERROR, "tierkv.shim"):
        for _ in range(3):
            assert getattr(connector, name)(*arguments) == neutral
    entry = "request_finished" if name == "request_finished_all_groups" else name
    assert half.counters.get(f"errors_{entry}") == (3 if name in MINOR else 1)
    assert half.failures.is_off == (name not in MINOR)
    assert caplog.text.count(f"tierKV: {entry} failed; the engine goes on") == 1
    assert "Traceback" in caplog.text
    assert caplog.text.count("turned itself off") == (0 if name in MINOR else 1)


def test_what_a_worker_must_say_and_cannot_goes_through() -> None:
    class Connector:
        half = BrokenHalf()

        @guarded()
        def work(self) -> None:
            raise CannotRecomputeError

        @guarded(lets_through=(ValueError,))
        def start(self) -> None:
            raise ValueError("no copier for this device")

    with pytest.raises(CannotRecomputeError):
        Connector().work()
    with pytest.raises(ValueError, match="no copier"):
        Connector().start()
    assert not Connector.half.failures.is_off


# --- the scheduler side ------------------------------------------------------------------------


def offered(bench: Bench, name: str = "r") -> Request:
    """A request of which vLLM has been promised three blocks."""
    request = bench.new(Request(name, 17, seed=name))
    number = len([frame for frame in bench.fake.frames if frame["t"] == "prefetch"])
    prefetch = bench.prefetch(max(1, number))
    bench.place(prefetch, 0, 5, 6, 7)
    bench.done(prefetch)
    assert bench.answer(request) == (12, True)
    return request


def break_late(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def late(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise BrokenError

    setattr(owner, name, late)


def break_early(owner: Any, name: str) -> None:
    setattr(owner, name, raiser)


@pytest.mark.parametrize("break_it", [break_early, break_late])
def test_promised_blocks_are_reported_as_failed(
    bench: Bench, break_it: Callable[[Any, str], None]
) -> None:
    connector = connector_of(bench.shim)
    request = offered(bench)
    break_it(bench.shim, "update_state_after_alloc")
    connector.update_state_after_alloc(request, Blocks([9, 3, 4, 1]), 12)
    (part,) = connector.build_connector_meta(scheduled({}, {})).loads
    assert part == LoadPart("r", NO_ARENA, 0, [9, 3, 4], [], last=True)
    assert connector.build_connector_meta(scheduled({}, {})).loads == []
    assert connector.has_pending_push_work()
    connector.update_connector_output(step_output({"r"}))
    connector.request_finished(request, [9, 3, 4, 1])
    assert bench.shim.status() == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
    assert not connector.has_pending_push_work()


@pytest.mark.parametrize("what", ["build_connector_meta", "_truth", "_idle"])
def test_a_step_that_could_not_be_planned_fails_its_loads_and_keeps_no_block(
    bench: Bench, what: str
) -> None:
    connector = connector_of(bench.shim)
    loaded = offered(bench)
    saved = bench.new(Request("s", 9, seed="s"))
    connector.build_connector_meta(scheduled({"s": 4}, {"s": [1, 2]}))  # its copies are under way
    assert bench.pool.referenced == [1]
    saved.num_computed_tokens = 4
    connector.update_state_after_alloc(loaded, Blocks([9, 3, 4, 5]), 12)
    if what == "build_connector_meta":
        break_late(bench.shim, what)
    else:
        bench.shim._idle.hear()
        vars(bench.shim._truth)["checks"]["other"] = None
        break_early(getattr(bench.shim, what), "next_step" if what == "_truth" else "end")
    step = connector.build_connector_meta(scheduled({"s": 5}, {"s": [1, 2, 6]}))
    assert (step.is_off, step.has_forward) == (True, True)
    assert [(part.req_id, part.arena, part.last) for part in step.loads] == [("r", NO_ARENA, True)]
    assert bench.pool.referenced == [1]
    connector.update_connector_output(step_output({"r"}, {1: 1}))
    assert bench.pool.referenced == []
    assert not connector.has_pending_push_work()


def test_receipts_are_heard_once_though_hearing_failed(bench: Bench) -> None:
    connector = connector_of(bench.shim)
    bench.new(Request("s", 9))
    bench.step({"s": 4}, s=[1, 2])
    break_early(bench.shim._generations, "hear")
    connector.update_connector_output(step_output(None, {1: 1}))
    assert bench.pool.referenced == []
    assert bench.pool.freed == [1]
    assert bench.shim.counters.get("turned_off") == 1


def test_an_engine_hears_that_its_workers_are_off(bench: Bench) -> None:
    connector = connector_of(bench.shim)
    request = offered(bench)
    output = step_output(None, {7: 1})
    output.kv_connector_worker_meta = StepReceipts(is_off=True)
    connector.update_connector_output(output)
    assert connector.get_num_new_matched_tokens(request, 0) == NOTHING
    assert connector.build_connector_meta(scheduled({}, {})).is_off
    bench.fake.expect("release")

    def told() -> list[int]:
        of_all = [counts["counters"] for counts in bench.fake.expect("counts")]
        return [counters["turned_off"] for counters in of_all if "turned_off" in counters]

    assert wait_until(told, "that it is off") == [1]
    wait_until(lambda: not bench.shim._channel.is_up, "the connection ends")


def test_an_engine_that_got_no_block_pool_is_off_and_owes_nothing(bench: Bench) -> None:
    bench.shim._saves.bind_pool(None)
    connector = connector_of(bench.shim)
    connector.bind_gpu_block_pool(None)
    bench.shim.turn_off("a test says so")
    assert connector.build_connector_meta(scheduled({}, {})).is_off
    assert not [name for name in bench.shim.counters.snapshot() if name.startswith("errors_")]


# --- the worker side ---------------------------------------------------------------------------


def step_of(
    of: TierKVConnector, metadata: StepMetadata
) -> tuple[set[str], set[str], set[int], StepReceipts]:
    """One step as vLLM runs it: received, failed, failed blocks, receipts."""
    of.handle_preemptions(metadata)
    of.bind_connector_metadata(metadata)
    of.start_load_kv(None)
    of.wait_for_save()
    if compat.fails_requests():
        results = of.get_transfer_results(set())
        received, failed = results.finished_recving, results.failed_recving
    else:
        received, failed = of.get_finished(set())[1] or set(), set()
    blocks = of.get_block_ids_with_load_errors()
    receipts = of.build_connector_worker_meta() or StepReceipts()
    of.clear_connector_metadata()
    return received, failed, blocks, receipts


@pytest.fixture
def rank(socket_path: str) -> Iterator[Rank]:
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as made:
        made.give_arena()
        made.give_credits((0, 1), (1, 1), (2, 1))
        yield made


def part(req_id: str, *block_ids: int, last: bool) -> LoadPart:
    return LoadPart(req_id, 1, 0, list(block_ids), list(range(len(block_ids))), last=last)


WORK = StepMetadata(
    has_forward=True,
    step=2,
    namespace=bytes(32),
    ticket=4,
    saves=[SaveItem(0, n, HASHES[n], HASHES[n - 1], 4 * n) for n in (1, 2)],
    loads=[part("a", 3, last=True), part("b", 4, 5, last=False)],
)
STEPS = [
    "handle_preemptions",
    "begin_step",
    "start_load_kv",
    "wait_for_save",
    "take_finished",
    "take_receipts",
]


@pytest.mark.parametrize("break_it", [break_early, break_late])
@pytest.mark.parametrize("name", STEPS)
def test_each_load_is_reported_and_each_ticket_acknowledged_exactly_once(
    rank: Rank, name: str, break_it: Callable[[Any, str], None]
) -> None:
    break_it(rank.shim, name)
    told = [step_of(rank.connector, WORK)]
    later = StepMetadata(step=3, loads=[part("b", 6, last=True)])
    told += [step_of(rank.connector, later), step_of(rank.connector, StepMetadata(step=4))]
    reported = [req_id for received, _, _, _ in told for req_id in sorted(received)]
    assert reported == ["a", "b"]
    assert sum((receipts.tickets for *_, receipts in told), start=type(told[0][3].tickets)()) == {
        4: 1
    }
    assert told[0][3].is_off
    failed = {req_id for _, failed, _, _ in told for req_id in failed}
    blocks = {block for _, _, found, _ in told for block in found}
    if compat.fails_requests():
        assert "b" in failed
        assert blocks == set()
    else:
        assert blocks >= {4, 5, 6}
    errors = {n: c for n, c in rank.shim.counters.snapshot().items() if n.startswith("errors_")}
    assert list(errors.values()) == [1]


def test_a_copy_that_fails_half_way_fails_its_request_only(rank: Rank) -> None:
    copier = rank.shim._copier
    real, calls = copier.load, 0

    def second_fails(batch: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise BrokenError
        real(batch)

    copier.load = second_fails  # type: ignore[method-assign]
    received, _, _, receipts = step_of(rank.connector, WORK)
    assert received == {"a"}
    assert receipts.tickets == {4: 1}
    received, _, _, _ = step_of(
        rank.connector, StepMetadata(step=3, loads=[part("b", 6, last=True)])
    )
    assert received == {"b"}


def test_a_rank_whose_scheduler_side_is_off_ends_its_connection(rank: Rank) -> None:
    *_, receipts = step_of(
        rank.connector, StepMetadata(is_off=True, loads=[part("c", 2, last=True)])
    )
    assert receipts.is_off
    wait_until(lambda: not rank.shim._channel.is_up, "the connection ends")
    assert step_of(rank.connector, StepMetadata(is_off=True))[0] == set()
