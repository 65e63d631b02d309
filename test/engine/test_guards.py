"""An exception in any of our methods during saves and restores: right tokens, no lost block, and tierKV is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from harness.models import PLAIN, Models, prompt
from harness.releases import IS_LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 5
#: Blocks per step, so that pages of a prompt take several steps to copy.
STEP_BLOCKS = 2

#: Methods of our half, and the connector's entry point that each one's exception reaches.
SCHEDULER = {
    "on_new_request": "on_new_request",
    "get_num_new_matched_tokens": "get_num_new_matched_tokens",
    "update_state_after_alloc": "update_state_after_alloc",
    "build_connector_meta": "build_connector_meta",
    "update_connector_output": "update_connector_output",
    "request_finished": "request_finished",
}
WORKER = {
    "handle_preemptions": "handle_preemptions",
    "begin_step": "bind_connector_metadata",
    "start_load_kv": "start_load_kv",
    "wait_for_save": "wait_for_save",
    "take_finished": "get_transfer_results",
    "take_receipts": "build_connector_worker_meta",
}
#: Methods that also raise after their work.
LATE = [
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "start_load_kv",
    "wait_for_save",
    "take_finished",
    "take_receipts",
]
#: The most important ones, which the short form runs.
SHORT = [
    ("scheduler", "update_state_after_alloc", True),
    ("scheduler", "build_connector_meta", False),
    ("scheduler", "update_connector_output", False),
    ("worker", "start_load_kv", True),
    ("worker", "wait_for_save", False),
]


class Bench:
    """A cluster, and an engine without tierKV as the reference."""

    def __init__(self, engines: Engines, cluster: Cluster, options: dict[str, object]) -> None:
        self.engines = engines
        self.cluster = cluster
        self.options = options
        self.plain = engines.start(vllm=options)

    def start(self, **config: object) -> Engine:
        block_bytes = PLAIN.layers * PLAIN.kv_heads * BLOCK * 2 * PLAIN.head_dim * 4
        return self.engines.start(
            vllm={**self.options, "kv_transfer_config": self.cluster.transfer_config},
            shim_limits={"LOAD_BYTES_PER_STEP_MAX": STEP_BLOCKS * block_bytes},
            **config,
        )

    def check(self, engine: Engine, *texts: list[int]) -> list[int]:
        """Checks answers of prompts that run side by side; returns the tokens found in caches."""
        wanted = self.plain.call("generate", prompts=list(texts))
        answers = engine.call("generate", prompts=list(texts))
        assert [answer["tokens"] for answer in answers] == [answer["tokens"] for answer in wanted]
        return [int(answer["cached"]) for answer in answers]

    def seed(self, engine: Engine, text: list[int]) -> None:
        """Puts a prompt into the vault and not into the engine."""
        engine.wait_up()
        before = self.cluster.saved()
        self.check(engine, text)
        self.cluster.wait_saved(before + BLOCKS)
        engine.empty()


@pytest.fixture(scope="module")
def bench(engines: Engines, new_cluster: Callable[..., Cluster], models: Models) -> Iterator[Bench]:
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["max_num_batched_tokens"] = 256
    yield Bench(engines, new_cluster(), options)


def text(number: int) -> list[int]:
    return prompt(7000 + number, BLOCKS * BLOCK + 3)


def cases() -> list[tuple[str, str, bool]]:
    if not IS_LONG:
        return SHORT
    named = [("scheduler", name) for name in SCHEDULER] + [("worker", name) for name in WORKER]
    early = [(side, name, False) for side, name in named]
    return early + [(side, name, True) for side, name in named if name in LATE]


@pytest.mark.parametrize(("side", "method", "is_late"), cases())
def test_an_exception_costs_restores_and_nothing_else(
    bench: Bench, side: str, method: str, is_late: bool
) -> None:
    number = 10 * cases().index((side, method, is_late))
    with bench.start() as engine:
        bench.seed(engine, text(number))
        engine.call("break_method", side=side, method=method, is_late=is_late)
        # One prompt is restored, two are computed and saved, all at once.
        bench.check(engine, text(number), text(number + 1), text(number + 2))
        engine.empty()
        assert bench.check(engine, text(number), text(number + 3)) == [0, 0]
        entry = {**SCHEDULER, **WORKER}[method]
        check_off(engine, entry)


def check_off(engine: Engine, entry: str) -> None:
    """Expects no open work and both halves off, because of one exception that was logged once."""
    assert engine.call("reset")
    status = engine.call("status")
    assert (status["requests"], status["blocks_in_use"]) == (0, 0)
    assert status["shim"] == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
    counters = status["counters"]
    errors = {name: n for name, n in counters.items() if name.startswith("errors_")}
    assert list(errors.values()) == [1], errors
    (name,) = errors
    assert name in (f"errors_{entry}", "errors_get_finished")
    assert counters["turned_off"] == 2
    log = engine.log.read_text()
    assert log.count("the engine goes on") == 1
    assert "InjectedError" in log


@pytest.mark.parametrize(
    ("side", "method"), [("worker", "register_kv_caches"), ("scheduler", "bind_gpu_block_pool")]
)
def test_an_exception_at_the_start_leaves_an_engine_without_tierkv(
    bench: Bench, side: str, method: str
) -> None:
    with bench.start(broken=[[side, method]]) as engine:
        bench.check(engine, text(950), text(951))
        engine.empty()
        assert bench.check(engine, text(950)) == [0]
        check_off(engine, method)
