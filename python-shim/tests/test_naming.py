"""An engine without a whole name keeps and restores nothing, and says why; the workers' word completes it."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import Introduction, StepReceipts
from tierkv.connectors.vllm.api.resolved import Resolved
from tierkv.connectors.vllm.engine.worker import WorkerShim
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.guard import Failures
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.connectors.vllm.naming.naming import Naming

from .support.engine import Request, connector_of, make_group, step_output, vllm_config
from .support.scheduler import ASK_AGAIN, NOTHING, RESOLVED, Bench, known_weights
from .support.sidecar import FakeSidecar, wait_until

pytestmark = pytest.mark.usefixtures("engine_core_started")

ROOT = bytes(range(32))
OTHER = Resolved({"model_config": "as another worker has it"})


@pytest.fixture
def shape() -> dict[str, Any]:
    return {"introduced": False}


def named(*found: Resolved) -> dict[str, Any]:
    """The namespace frame of an engine whose ranks say `found`."""
    naming = Naming({"groups": "g"}, "m", len(found), known_weights(), Counters(), order=1)
    naming.introduce(dict(enumerate(found)))
    sent: list[dict[str, Any]] = []

    def send(frame: dict[str, Any]) -> bool:
        sent.append(frame)
        return True

    naming.name(1, send)
    if sent:
        told = {"weights": sent[0]["weights"], "fidelity": 0, "otherwise": 0}
        naming.hear({"t": "fidelity", **told})
        naming.name(1, send)
    return next((frame for frame in sent if frame["t"] == "namespace"), {})


def test_what_the_workers_run_with_is_a_part_of_the_name() -> None:
    assert named(RESOLVED)["namespace"] == named(RESOLVED, RESOLVED)["namespace"]
    assert named(RESOLVED)["namespace"] != named(OTHER)["namespace"]
    assert named(RESOLVED)["parts"]["model_config"] == RESOLVED.parts["model_config"]


def test_the_log_has_the_name_in_one_line_and_its_parts_for_who_looks_closer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "tierkv.shim"):
        name = named(RESOLVED)["namespace"].hex()
    assert caplog.messages == [f"tierKV: blocks are named {name} and come back bit for bit"]


def test_ranks_that_differ_and_ranks_that_cannot_be_named_have_no_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert named(RESOLVED, OTHER) == {}
    assert "ranks 0 and 1 run with different model_config" in caplog.text
    assert named(Resolved(refused="VllmConfig.x: a thing")) == {}
    assert "rank 0: VllmConfig.x: a thing" in caplog.text


def test_the_first_word_of_a_rank_counts() -> None:
    naming = Naming({}, "m", 2, known_weights(), Counters(), order=1)
    naming.introduce({0: RESOLVED})
    assert (naming.awaits_ranks, naming.is_complete) == (True, False)
    naming.introduce({0: OTHER, 1: RESOLVED})
    assert (naming.awaits_ranks, naming.is_complete) == (False, True)
    naming.introduce({1: OTHER})
    assert (naming.awaits_ranks, naming.is_complete) == (False, True)


def test_before_the_workers_word_nothing_is_saved_and_requests_wait_for_it(bench: Bench) -> None:
    request = bench.new(Request("r", 16))
    assert bench.ask(request) == ASK_AGAIN
    assert bench.step({"r": 16}, r=[1, 2, 3, 4]).saves == []
    assert bench.step({"r": 16}, r=[1, 2, 3, 4]).saves == []
    assert bench.shim.counters.get("steps_unnamed") == 2
    bench.shim.update_connector_output(step_output(resolved={0: RESOLVED}))
    assert bench.ask(request) == ASK_AGAIN  # now for the sidecar
    wait_until(bench.is_decided, "the fidelity is decided")
    assert bench.ask(request) == ASK_AGAIN  # now for the blocks
    bench.prefetch()
    (ours,) = bench.fake.expect("namespace")
    assert ours["parts"]["model_config"] == RESOLVED.parts["model_config"]
    assert len(bench.step({"r": 16}, r=[1, 2, 3, 4]).saves) == 4


def test_a_request_does_not_wait_for_the_word_for_ever(bench: Bench) -> None:
    bench.shim._budget.stall_s = 0.0
    assert bench.ask(bench.new(Request("r", 16))) == NOTHING


def test_a_request_waits_for_the_sidecars_decision_and_not_for_ever(socket_path: str) -> None:
    with FakeSidecar(socket_path, fidelity=None) as sidecar, Bench(socket_path, sidecar) as bench:
        wait_until(lambda: sidecar.weights, "the fidelity is asked for")
        request = bench.new(Request("r", 16))
        assert bench.ask(request) == ASK_AGAIN
        bench.shim._budget.stall_s = 0.0
        assert bench.ask(request) == NOTHING


def test_a_refused_name_is_counted_and_nobody_waits(bench: Bench) -> None:
    bench.shim.introduce({0: Resolved(refused="why")})
    request = bench.new(Request("r", 16))
    assert bench.ask(request) == NOTHING
    assert bench.step({"r": 16}, r=[1, 2, 3, 4]).saves == []
    assert bench.shim.counters.get("names_refused") == 1
    assert [frame for frame in bench.fake.frames if frame["t"] != "counts"] == []


def test_before_the_files_are_read_nothing_is_saved_or_asked_and_progress_is_told(
    socket_path: str,
) -> None:
    weights = known_weights()
    weights.digest = ""
    weights._files.total_bytes, weights._files.done_bytes = 200, 122
    weights.begin = weights.start = lambda: None  # type: ignore[method-assign]
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar, weights=weights) as bench:
        request = bench.new(Request("r", 16))
        assert bench.ask(request) == NOTHING
        assert bench.step({"r": 16}, r=[1, 2, 3, 4]).saves == []
        assert told(sidecar) == [{"percent": 61, "refused": ""}]
        weights.digest = "files:read"
        wait_until(bench.is_decided, "the fidelity is decided")
        assert len(bench.step({"r": 16}, r=[1, 2, 3, 4]).saves) == 4
        assert told(sidecar, 2)[-1] == {"percent": 100, "refused": ""}


def test_the_files_are_read_without_a_sidecar_and_their_digest_is_told_at_once(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = known_weights()
    weights.digest = ""
    may_read = threading.Event()

    def identify() -> str:
        may_read.wait()
        return "files:read"

    weights._identify = identify  # type: ignore[method-assign]
    with Bench(socket_path, None, weights=weights) as bench:
        assert weights._thread.is_alive()
        monkeypatch.setattr(limits, "NAMING_START_WAIT_S", 0.0)
        monkeypatch.setattr(
            limits, "PING_EVERY_S", 1e6
        )  # nothing is told with a ping but the first
        with FakeSidecar(socket_path) as sidecar:
            channel = bench.shim._channel
            wait_until(lambda: channel.is_up, "the channel is up")
            channel.report()
            wait_until(lambda: not channel._is_due, "the first report")
            may_read.set()
            wait_until(lambda: sidecar.weights, "the digest")
            assert [frame["weights"] for frame in sidecar.weights] == ["files:read"]


def test_a_refusal_is_told_to_every_connection(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    weights = known_weights()
    weights.refused = "why " * 100
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar, weights=weights) as bench:
        (naming,) = told(sidecar)
        assert naming["refused"] == weights.refused[: limits.REFUSAL_TEXT_MAX]
        sidecar.drop_connections()
        assert told(sidecar, 2) == [naming, naming]
        assert bench.shim.counters.get("names_refused") == 1


def told(sidecar: FakeSidecar, count: int = 1) -> list[Any]:
    """What the sidecar heard of the name, once it has heard `count` words of it."""

    def heard() -> list[Any]:
        return [frame["naming"] for frame in sidecar.frames if "naming" in frame]

    wait_until(lambda: len(heard()) >= count, "a word of the name")
    return heard()


def worker(rank: int = 0) -> WorkerShim:
    config = vllm_config(world=2, rank=rank)
    return WorkerShim(config, Settings("/none", "test", autostart=False), [make_group()], 8)


def test_a_worker_says_it_once_in_a_handshake_or_with_its_first_receipts() -> None:
    said = [worker(rank).take_receipts() for rank in (0, 1)]
    assert all(isinstance(one, StepReceipts) for one in said)
    both = said[0].aggregate(said[1])  # type: ignore[union-attr]
    assert set(both.resolved) == {0, 1}
    shaken = worker()
    assert shaken.introduce().rank == 0
    assert shaken.take_receipts() is None


def test_only_the_engines_one_connector_takes_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = connector_of(worker())
    for alone in (True, False):
        monkeypatch.setattr(compat, "is_alone", lambda one, alone=alone: alone)
        assert (ours.get_handshake_metadata() is not None) == alone
    heard: list[Any] = []
    scheduler = SimpleNamespace(introduce=heard.append, failures=Failures(Counters()))
    ours = connector_of(scheduler)
    theirs = {(0, 0): Introduction(0, RESOLVED), (0, 1): object()}
    ours.set_xfer_handshake_metadata_pp_aware(theirs)
    assert heard == [{0: RESOLVED}]
