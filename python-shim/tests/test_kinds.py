"""Engines of other kinds: several schedulers, drafts in a pipeline, in their caller's process, with ranks elsewhere."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import SaveItem, StepMetadata
from tierkv.connectors.vllm.api.resolved import Resolved, reaching
from tierkv.connectors.vllm.connector import TierKVConnector
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.pages.copies import CudaCopier
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.worker.worker_base import WorkerBase

from .support.device import Device
from .support.engine import FullAttentionSpec, Pool, Request, kv_cache_config, vllm_config
from .support.scheduler import NOTHING, known_weights
from .support.sidecar import FakeSidecar
from .support.worker import HASHES, NAMESPACE, Rank


@pytest.fixture
def rank(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar, world=2) as made:
        yield made


def saving(step: int, *blocks: int) -> StepMetadata:
    items = [SaveItem(0, b, HASHES[b], HASHES[b - 1], 4 * b) for b in blocks]
    return StepMetadata(has_forward=True, step=step, namespace=NAMESPACE, ticket=step, saves=items)


# --- each rank with a scheduler of its own -----------------------------------------------------


def launched(socket_path: str, executor: str | None, world: int) -> TierKVConnector:
    config = vllm_config(world=world)
    config.parallel_config.distributed_executor_backend = executor
    config.kv_transfer_config.kv_connector_extra_config = {
        "socket": socket_path,
        "autostart": False,
    }
    cache = kv_cache_config(FullAttentionSpec())
    return TierKVConnector(config, KVConnectorRole.SCHEDULER, cache)


@pytest.mark.parametrize(
    ("executor", "world", "is_untouched"),
    [
        ("external_launcher", 2, True),
        ("external_launcher", 1, False),
        ("ray", 2, False),
        (None, 1, False),
    ],
)
def test_ranks_that_each_plan_alone_run_as_without_us(
    socket_path: str,
    executor: str | None,
    world: int,
    *,
    is_untouched: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeSidecar(socket_path) as sidecar:
        connector = launched(socket_path, executor, world)
        connector.bind_gpu_block_pool(Pool())
        for number in range(2):
            request = Request(f"r{number}", 41)
            connector.on_new_request(request)
            if is_untouched:  # at once, so that no rank's clock decides
                assert connector.get_num_new_matched_tokens(request, 0) == NOTHING
        assert connector.half.counters.get("requests_untouched") == (2 if is_untouched else 0)
        assert caplog.text.count("external_launcher") == int(is_untouched)
        connector.shutdown()
        assert not (is_untouched and sidecar.hellos)


# --- a rank whose runner does not call `wait_for_save` -----------------------------------------


def test_blocks_of_a_step_without_its_end_are_copied_and_acknowledged_at_the_next(
    rank: Rank,
) -> None:
    arena = rank.give_arena()
    rank.give_credits((4, 9), (2, 7))
    rank.shim.begin_step(saving(11, 3, 5))
    rank.memory[:, [3, 5]] += 1  # the forward
    assert rank.shim.take_receipts() is not None  # slots only
    rank.shim.begin_step(StepMetadata(step=12))
    receipts = rank.shim.take_receipts()
    assert receipts is not None
    assert receipts.tickets == {11: 1}
    assert (arena.slot(4), arena.slot(2)) == (rank.page(3), rank.page(5))
    assert rank.shim.counters.get("saves_after_step") == 1


def test_a_step_that_ended_is_not_copied_again(rank: Rank) -> None:
    rank.give_arena()
    rank.give_credits((4, 9), (2, 7))
    step = saving(11, 3)
    rank.shim.begin_step(step)
    rank.shim.wait_for_save(step)
    rank.shim.begin_step(StepMetadata(step=12))
    receipts = rank.shim.take_receipts()
    assert receipts is not None
    assert (receipts.tickets, receipts.slots) == ({11: 1}, 1)
    assert rank.shim.counters.get("saves_after_step") == 0


# --- an engine in its caller's process ---------------------------------------------------------


class Waiting(Device):
    """A device whose copies have ended when somebody has waited for them."""

    def stream(self) -> Any:
        stream = super().stream()
        stream.synchronize = self._end  # type: ignore[method-assign]
        return stream

    def _end(self) -> None:
        for event in self.events:
            event.has_passed = True


@pytest.mark.parametrize("is_in_process", [False, True])
def test_the_last_step_of_an_engine_in_its_callers_process_leaves_no_reference(
    socket_path: str, monkeypatch: pytest.MonkeyPatch, *, is_in_process: bool
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", str(int(not is_in_process)))
    assert bool(envs.VLLM_ENABLE_V1_MULTIPROCESSING) != is_in_process
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as bench:
        bench.give_arena()
        bench.give_credits((0, 1))
        bench.shim._copier = CudaCopier(torch.device("cpu"), Waiting())
        assert bench.save(3, ticket=5) == ({5: 1} if is_in_process else {})


@pytest.mark.parametrize("world", [1, 2])
def test_where_a_draft_model_computes_after_the_forward_the_step_still_leaves_no_reference(
    socket_path: str, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar, world=world) as bench:
        bench.give_arena()
        bench.give_credits((0, 1))
        bench.shim.take_receipts()
        step = saving(11, 3, 4)
        bench.shim.begin_step(step)
        early = bench.shim.take_receipts()
        bench.shim.wait_for_save(step)
        assert (early is not None) == (world == 1)
        if early is not None:
            assert (early.tickets, early.refused) == ({11: 1}, {11: 1})
        later = bench.shim.take_receipts()  # is all there is with two ranks
        assert later is not None
        assert (later.tickets, later.refused) == ({11: 1}, {11: 1})


# --- ranks that find another sidecar -----------------------------------------------------------


def test_a_rank_reports_the_socket_it_finds(rank: Rank, socket_path: str) -> None:
    assert rank.shim.introduce().resolved.socket == socket_path


def test_a_rank_that_reaches_another_sidecar_is_named(caplog: pytest.LogCaptureFixture) -> None:
    parts = {"model_config": "m"}
    found = {0: Resolved(parts, socket="/run/a.sock"), 1: Resolved(parts, socket="/srv/b.sock")}
    naming = Naming({}, "m", 2, known_weights(), Counters(), order=1)
    naming.introduce(reaching(found, "/run/a.sock"))
    assert not naming.is_complete
    assert "rank 1: its sidecar is at /srv/b.sock, the scheduler's at /run/a.sock" in caplog.text
    assert "kv_connector_extra_config.socket" in caplog.text


# --- the end of a worker's warm-up -------------------------------------------------------------


class Warming:
    def __init__(self) -> None:
        self.said: list[str] = []

    def compile_or_warm_up_model(self, size: int) -> int:
        self.said.append("captured")
        return size


def test_arenas_may_be_pinned_once_the_warm_up_has_ended() -> None:
    worker = Warming()
    compat.after_warm_up(worker, lambda: worker.said.append("may pin"))
    assert worker.compile_or_warm_up_model(3) == 3
    assert worker.said == ["captured", "may pin"]
    compat.after_warm_up(None, worker.said.clear)
    assert hasattr(WorkerBase, "compile_or_warm_up_model")


def test_a_first_step_allows_it_as_well(rank: Rank) -> None:
    device = Device()
    rank.shim._copier = CudaCopier(torch.device("cpu"), device)
    assert not rank.shim._copier._capture_ended.is_set()
    rank.shim.begin_step(StepMetadata(step=1))
    assert rank.shim._copier._capture_ended.is_set()
