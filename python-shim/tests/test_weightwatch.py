"""The watch on a worker's weights: which calls it hears, what it tells, and what a rank does until it is heard."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import compat, limits
from tierkv.connectors.vllm.metadata import LoadPart, StepMetadata, StepReceipts
from tierkv.connectors.vllm.weightwatch import CHANGING, WeightWatch
from vllm.v1.worker.gpu_worker import Worker

from .support.sidecar import FakeSidecar
from .support.worker import Rank

#: Calls of a worker by such names that leave weights as they are, or that the watch tells apart itself.
HARMLESS = (
    "checkpoint_prepare",
    "compute_weight_checksums",
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "sleep",
    "sleep_mode_backend",
    "supports_draft_weight_updates",
    "update_max_model_len",
    "wake_up",
)


class Calls:
    """A worker, a model runner or a model: notes what is called."""

    def __init__(self, *names: str, **parts: Any) -> None:
        self.heard: list[tuple[str, Any, Any]] = []
        for name in names:
            setattr(self, name, lambda *a, name=name, **k: self.heard.append((name, a, k)))
        self.__dict__.update(parts)


def watched() -> tuple[WeightWatch, Any]:
    model = Calls("load_weights")
    runner = Calls("reload_weights", model=model)
    worker = Calls(*CHANGING, "sleep", "wake_up", model_runner=runner)
    watch = WeightWatch()
    watch.install(worker)
    return watch, worker


def report(watch: WeightWatch, step: int, question: int = 0) -> StepReceipts:
    metadata = StepMetadata(step=step, question=question)
    watch.begin_step(step)
    receipts = StepReceipts()
    watch.report(metadata, receipts)
    return receipts


@pytest.mark.parametrize("name", CHANGING)
def test_each_call_that_may_change_weights_is_told_once(name: str) -> None:
    watch, worker = watched()
    assert report(watch, 4).is_empty
    getattr(worker, name)(1, key=2)
    assert worker.heard == [(name, (1,), {"key": 2})]
    assert report(watch, 5).changed_at == 5
    assert report(watch, 6).is_empty


def test_the_runner_and_the_model_are_watched_too() -> None:
    watch, worker = watched()
    worker.model_runner.reload_weights()
    assert report(watch, 1).changed_at == 1
    worker.model_runner.model.load_weights([("name", None)])
    assert report(watch, 2).changed_at == 2


def test_a_model_behind_a_wrapper_is_watched() -> None:
    model = Calls("load_weights")
    runner = Calls(model=SimpleNamespace(), get_model=lambda: model)
    watch = WeightWatch()
    watch.install(SimpleNamespace(model_runner=runner))
    model.load_weights([])  # type: ignore[attr-defined]
    assert report(watch, 1).changed_at == 1


def test_a_call_that_fails_may_have_changed_some() -> None:
    watch = WeightWatch()
    worker = SimpleNamespace(reload_weights=lambda: 1 // 0)
    watch.install(worker)
    with pytest.raises(ZeroDivisionError):
        worker.reload_weights()
    assert report(watch, 1).changed_at == 1


@pytest.mark.parametrize(("level", "changed_at", "sleeps"), [(1, 0, 1), (2, 7, 0)])
def test_sleep_keeps_weights_at_level_1_only(level: int, changed_at: int, sleeps: int) -> None:
    watch, worker = watched()
    worker.sleep(level=level)
    worker.wake_up()
    receipts = report(watch, 7, question=3)
    assert (receipts.changed_at, receipts.sleeps) == (changed_at, sleeps)
    assert receipts.answers == {3: 1}
    assert report(watch, 8, question=4).sleeps == 0


def test_every_call_of_this_release_that_sounds_like_weights_is_known() -> None:
    sounds = re.compile(r"weight|load|apply_model|^update_|sleep|wake|discard|checkpoint|elastic")
    public = {name for name in dir(Worker) if not name.startswith("_") and sounds.search(name)}
    assert public <= {*CHANGING, *HARMLESS}
    assert {"reload_weights", "update_weights", "update_config", "sleep"} <= public


def test_the_worker_above_is_the_one_that_builds_the_connector() -> None:
    class Building(Worker):  # type: ignore[misc]
        def __init__(self) -> None:
            """Takes nothing."""

        def build(self) -> Any:
            return self.below()

        @staticmethod
        def below() -> Any:
            return compat.worker_above()

    building = Building()
    assert building.build() is building
    assert compat.worker_above() is None


@pytest.fixture
def bench(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as made:
        yield made


def change(bench: Rank) -> None:
    worker = SimpleNamespace(reload_weights=lambda: None)
    bench.shim.weights.install(worker)
    worker.reload_weights()


def test_no_block_of_changed_weights_is_saved_before_the_scheduler_has_heard(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1), (1, 1))
    change(bench)
    bench.shim.begin_step(StepMetadata(step=9))
    assert bench.save(3, ticket=5) == {5: 1}  # its references end all the same
    assert bench.shim.counters.snapshot()["dropped_save_weights_changed"] == 1
    assert bench.shim.status()["credits"] == 2


def test_no_block_of_earlier_weights_is_loaded_before_the_scheduler_has_heard(bench: Rank) -> None:
    bench.give_arena()
    before = bench.page(1)
    change(bench)
    part = LoadPart(req_id="r", arena=1, group=0, block_ids=[1], slots=[0], last=True)
    step = StepMetadata(step=9, heard=8, loads=[part])
    bench.shim.begin_step(step)
    bench.shim.start_load_kv(step)
    assert bench.shim.take_finished() == (set(), {"r"})
    assert bench.page(1) == before
    assert bench.shim.counters.snapshot()["load_weights_changed"] == 1


def test_a_block_without_a_name_is_not_sent(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1))
    assert bench.save(3, namespace=b"") == {1: 1}
    assert bench.shim.counters.snapshot()["dropped_save_no_name"] == 1


def test_a_saved_block_says_what_it_belongs_to(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1))
    bench.save(3, namespace=b"n" * 32)
    (frame,) = bench.fake.expect("save")
    assert frame["namespace"] == b"n" * 32
