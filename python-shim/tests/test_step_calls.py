"""What a step costs the engine's thread in calls of ours: few where nothing happens, however many requests decode."""

import pickle
import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import StepMetadata
from tierkv.connectors.vllm.connector import TierKVConnector

from .support.engine import Request, connector_of, scheduled
from .support.scheduler import Bench
from .support.sidecar import FakeSidecar
from .support.worker import Rank

#: Measured: 18 and 31. Each call runs cold, because a forward has emptied the processor's caches.
SCHEDULER_CALLS_MAX = 19
WORKER_CALLS_MAX = 33
#: Measured: 77 bytes (89 with every field), most of them the name of the class.
PICKLED_BYTES_MAX = 84


def calls_of(step: Callable[[], object]) -> Counter[str]:
    """Which functions of Python one step calls."""
    called: Counter[str] = Counter()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called[frame.f_code.co_name] += 1

    step()  # the first one sets up
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    del called["step"]  # the test's own
    return called


def decode(bench: Bench, count: int) -> tuple[Any, Any]:
    """`count` requests in the middle of a block, each with its next token."""
    requests = [bench.new(Request(f"r{n}", 41, seed=str(n))) for n in range(count)]
    for request in requests:
        request.num_computed_tokens = 41
    output = scheduled({one.request_id: 1 for one in requests}, {})
    return output, SimpleNamespace(finished_recving=None, kv_connector_worker_meta=None)


def rounds(connector: TierKVConnector, output: Any, result: Any) -> Callable[[], StepMetadata]:
    def step() -> StepMetadata:
        metadata = connector.build_connector_meta(output)
        connector.update_connector_output(result)
        connector.get_kv_connector_stats()
        return metadata

    return step


@pytest.mark.parametrize("count", [1, 64])
def test_the_scheduler_side_does_nothing_where_nothing_happens(bench: Bench, count: int) -> None:
    step = rounds(connector_of(bench.shim), *decode(bench, count))
    called = calls_of(step)
    assert called.total() <= SCHEDULER_CALLS_MAX, called
    assert len(pickle.dumps(step(), protocol=pickle.HIGHEST_PROTOCOL)) <= PICKLED_BYTES_MAX


def test_a_request_is_looked_at_when_a_block_is_full(bench: Bench) -> None:
    output, _ = decode(bench, 1)
    state = bench.shim._requests["r0"]
    bench.shim.build_connector_meta(output)
    assert state.cursor.due_tokens == 44
    state.request.block_hashes.append(bytes(32))
    state.request.num_computed_tokens = 43
    tables = {"r0": list(range(1, 12))}
    assert [item.end_tokens for item in bench.step({"r0": 1}, **tables).saves] == [44]


def test_the_worker_does_nothing_where_nothing_happens(socket_path: str) -> None:
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as rank:
        rank.give_arena()
        rank.give_credits((4, 9))
        rank.shim.take_receipts()
        connector = connector_of(rank.shim)
        output = StepMetadata(has_forward=True, step=3)

        def step() -> None:
            connector.bind_connector_metadata(output)
            connector.start_load_kv(None)
            connector.wait_for_save()
            if compat.fails_requests():
                connector.get_transfer_results(set())
            else:
                connector.get_finished(set())
            connector.get_block_ids_with_load_errors()
            connector.get_kv_connector_stats()
            assert connector.build_connector_worker_meta() is None
            connector.clear_connector_metadata()

        called = calls_of(step)
        assert called.total() <= WORKER_CALLS_MAX, called
