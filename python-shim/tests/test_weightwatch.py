"""The watch on a worker's weights: which calls it hears, what it tells, and what a rank does until it is heard."""

import random
import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import LoadPart, Memory, StepMetadata, StepReceipts
from tierkv.connectors.vllm.naming import memory
from tierkv.connectors.vllm.naming.memory import mixed
from tierkv.connectors.vllm.naming.weightwatch import CHANGING, REBUILDING, RESTING, WeightWatch
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.v1.worker.gpu_worker import Worker

from .support.sidecar import FakeSidecar, wait_until
from .support.worker import Rank

#: Calls of a worker by such names that leave weights as they are, or that the watch tells apart itself.
HARMLESS = (
    "checkpoint_prepare",
    "compute_weight_checksums",
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "sleep_mode_backend",
    "supports_draft_weight_updates",
    "update_max_model_len",
)


@pytest.fixture(autouse=True)
def readers_are_not_put_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMING_NICE", 0)


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
    worker = Calls(*CHANGING, *REBUILDING, *RESTING, model_runner=runner)
    watch = WeightWatch()
    watch.install(worker)
    return watch, worker


def report(watch: WeightWatch, step: int, question: int = 0) -> StepReceipts:
    metadata = StepMetadata(step=step, question=question)
    watch.begin_step(step, question)
    receipts = StepReceipts()
    watch.report(metadata, receipts, 0)
    return receipts


@pytest.mark.parametrize("name", [*CHANGING, *REBUILDING])
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


@pytest.mark.parametrize(("level", "changed_at"), [(1, 0), (2, 7)])
def test_sleep_keeps_weights_at_level_1_only(level: int, changed_at: int) -> None:
    watch, worker = watched()
    worker.sleep(level=level)
    worker.wake_up()
    assert report(watch, 7).changed_at == changed_at


def packed(weight: torch.Tensor) -> Any:
    return lambda x: x @ weight.t()


class Model(torch.nn.Module):
    """A small model; its layers may keep packed weights to themselves, as vLLM's do on a CPU."""

    def __init__(self, *, is_packed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers: Any = torch.nn.ModuleList(torch.nn.Linear(5, 3) for _ in range(3))
        self.scale = 1.5
        self.kv_cache = torch.zeros(4)
        if is_packed:
            self.pack()

    def pack(self) -> None:
        for layer in self.layers:
            layer.cpu_linear = packed(layer.weight)
            layer.weight = torch.nn.Parameter(torch.empty(0))


def loaded(model: Model) -> tuple[WeightWatch, Any]:
    """A watch over a worker whose model has been loaded and read."""
    worker = Calls(*CHANGING, *REBUILDING, *RESTING, model_runner=SimpleNamespace(model=model))
    watch = WeightWatch()
    watch.install(worker)
    watch.read_loaded()
    watch.end_reading()
    return watch, worker


def held(watch: WeightWatch, question: int) -> Memory:
    """The answer to a question, once the model is read."""
    watch.begin_step(question, question)
    wait_until(lambda: watch._memory.is_done, "the model is read")
    receipts = StepReceipts()
    watch.report(StepMetadata(step=question, question=question), receipts, 0)
    again = StepReceipts()
    watch.report(StepMetadata(step=question, question=question), again, 0)
    assert again.memory == {}  # answered once
    return receipts.memory[0]


def scale(model: Model) -> None:
    with torch.no_grad():
        model.layers[1].weight.data.mul_(1.001)


def test_a_model_that_is_as_it_was_loaded_is_told_apart_from_a_changed_one() -> None:
    model = Model()
    watch, worker = loaded(model)
    before = held(watch, 1)
    assert before.is_loaded
    model.kv_cache += 1  # as every step does
    assert held(watch, 2) == before._replace(question=2)
    scale(model)  # as a trainer does it, by a call that nobody watches
    changed = held(watch, 3)
    assert (changed.is_loaded, changed.digest != before.digest) == (False, True)
    worker.reload_weights()
    model.load_state_dict(Model().state_dict())
    assert held(watch, 4) == before._replace(question=4)


@pytest.mark.parametrize("change", ["scale", "swap", "bias", "number", "one word"])
def test_any_change_of_what_a_model_holds_changes_its_digest(change: str) -> None:
    model = Model()
    watch, _ = loaded(model)
    weights = [layer.weight.data for layer in model.layers]
    if change == "scale":
        scale(model)
    elif change == "swap":
        model.layers[0].weight.data, model.layers[1].weight.data = weights[1], weights[0]
    elif change == "bias":
        model.layers[2].bias.data[1] = 0.25
    elif change == "number":
        model.scale = 1.25
    else:
        weights[0][0, 0], weights[0][0, 1] = weights[0][0, 1].clone(), weights[0][0, 0].clone()
    assert not held(watch, 1).is_loaded


def test_packed_weights_are_the_same_only_while_nobody_touched_them() -> None:
    model = Model(is_packed=True)
    watch, worker = loaded(model)
    assert held(watch, 1) == Memory(1, "", is_loaded=True)
    model.pack()  # other weights, packed again: no tensor shows it
    assert held(watch, 2) == Memory(2)
    model = Model(is_packed=True)
    watch, worker = loaded(model)
    worker.update_weights()
    assert held(watch, 1) == Memory(1)


def test_weights_that_vllm_packs_on_a_cpu_are_known_by_who_keeps_them() -> None:
    """vLLM's own code packs a layer for oneDNN, and leaves an empty parameter behind."""
    model = Model()
    for layer in model.layers:
        layer.weight = torch.nn.Parameter(torch.rand(64, 64), requires_grad=False)
        dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    watch, _ = loaded(model)
    is_packed = all(layer.weight.numel() == 0 for layer in model.layers)
    before = held(watch, 1)
    assert (before.is_loaded, before.digest == "") == (True, is_packed)
    layer = model.layers[1]
    layer.weight = torch.nn.Parameter(torch.rand(64, 64), requires_grad=False)
    dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert not held(watch, 2).is_loaded


@pytest.mark.parametrize("name", REBUILDING)
def test_what_may_change_more_than_memory_shows_ends_all_trust_in_it(name: str) -> None:
    watch, worker = loaded(Model())
    getattr(worker, name)()
    assert held(watch, 1) == Memory(1)


def test_nothing_is_read_while_the_weights_are_away() -> None:
    watch, worker = loaded(Model())
    worker.sleep(1)
    assert report(watch, 1, question=1).memory == {}
    worker.wake_up(["kv_cache"])
    assert report(watch, 2, question=1).memory == {}
    worker.wake_up(["weights"])
    assert held(watch, 1).is_loaded


def test_a_call_that_changes_weights_meets_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, worker = loaded(Model())
    is_read, may_end = threading.Event(), threading.Event()
    true = memory.hold

    def slow(models: Any, is_stopped: Any) -> Any:
        is_read.set()
        wait_until(lambda: may_end.is_set() or is_stopped(), "the end")
        return true(models, is_stopped)

    monkeypatch.setattr(memory, "hold", slow)
    watch.begin_step(1, 1)
    assert is_read.wait(5)
    worker.update_weights()  # ends the reading first
    assert watch._memory._thread is None
    may_end.set()
    assert not held(watch, 1).is_loaded or watch.changed_at == 1


def test_without_a_model_or_with_one_that_cannot_be_read_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch, _ = watched()
    assert held(watch, 1) == Memory(1)
    monkeypatch.setattr(memory, "_digest", lambda *_: 1 // 0)
    watch, _ = loaded(Model())
    assert held(watch, 1) == Memory(1)
    assert "the loaded model cannot be read" in caplog.text


@pytest.mark.parametrize("size", [0, 1, 7, 8, 64, 1000])
def test_a_devices_sums_depend_on_every_byte_and_its_place(size: int) -> None:
    data = torch.frombuffer(bytearray(random.Random(size).randbytes(size + 8)), dtype=torch.uint8)[
        :size
    ]
    seen = {b"".join(mixed(data))}
    for at in range(size):
        other = data.clone()
        other[at] ^= 1
        seen.add(b"".join(mixed(other)))
    assert len(seen) == size + 1
    if size >= 64:
        words = data[: size // 8 * 8].view(-1, 8)
        assert b"".join(mixed(words.flip(0).flatten())) not in seen


def test_every_call_of_this_release_that_sounds_like_weights_is_known() -> None:
    sounds = re.compile(r"weight|load|apply_model|^update_|sleep|wake|discard|checkpoint|elastic")
    public = {name for name in dir(Worker) if not name.startswith("_") and sounds.search(name)}
    assert public <= {*CHANGING, *REBUILDING, *RESTING, *HARMLESS}
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
