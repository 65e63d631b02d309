"""The oldest and the newest vLLM, or every one: restored by another engine, aborted, preempted; hybrid models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.engine import EngineError
from harness.leftovers import check_nothing_left
from harness.models import HYBRID, PLAIN, Models, prompt
from harness.releases import NEWEST, OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 5
BLOCK_BYTES = PLAIN.layers * PLAIN.kv_heads * BLOCK * 2 * PLAIN.head_dim * 4
SHARED, TEXT, OTHER = (prompt(seed, BLOCKS * BLOCK + 3) for seed in (700, 701, 702))

Answer = dict[str, Any]


class Bench:
    """One engine of a release, with blocks in the vault from an earlier engine of that release."""

    def __init__(self, engine: Engine, cluster: Cluster, shared: Answer, pages: list[str]) -> None:
        self.engine = engine
        self.cluster = cluster
        self.shared = shared
        self.pages = pages

    def ask(self, text: list[int], **options: Any) -> Answer:
        return self.engine.ask(text, **options)

    def seed(self, text: list[int], **options: Any) -> Answer:
        """Puts a prompt's blocks into the vault and empties the engine; returns the engine's own hit."""
        cold = self.ask(text, **options)
        assert cold["cached"] == 0
        self.cluster.wait_idle()
        own_hit = self.ask(text, **options)
        assert own_hit["cached"] == BLOCKS * BLOCK
        self.empty()
        return own_hit

    def empty(self) -> None:
        self.engine.empty()

    def count(self, name: str) -> int:
        return int(self.engine.call("status")["counters"].get(name, 0))


@pytest.fixture(scope="module")
def one_engine(
    release_engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> Bench:
    cluster = new_cluster()
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    with release_engines.start(vllm=options).wait_up() as first:
        first.call("generate", prompts=[SHARED])
        cluster.wait_saved(BLOCKS)
        own_hit = first.ask(SHARED)
        pages = first.call("pages", prompt=SHARED)
    # A step for each block, so that a load can be caught.
    limits = {"LOAD_BYTES_PER_STEP_MAX": BLOCK_BYTES}
    engine = release_engines.start(vllm=options, shim_limits=limits).wait_up()
    assert engine.call("facts")["release"].startswith(release_engines.release)
    engine.call("spoil")
    return Bench(engine, cluster, own_hit, pages)


@pytest.fixture
def bench(one_engine: Bench) -> Bench:
    one_engine.empty()
    return one_engine


def test_another_engine_restores_what_the_first_has_saved(bench: Bench) -> None:
    again = bench.ask(SHARED)
    assert again["cached"] == BLOCKS * BLOCK
    assert again["tokens"] == bench.shared["tokens"]
    assert again["logprobs"] == pytest.approx(bench.shared["logprobs"], abs=1e-5)
    assert bench.engine.call("pages", prompt=SHARED) == bench.pages
    assert bench.cluster.counters()["blocks_restored_vault"] == BLOCKS
    check_nothing_left(bench.engine, bench.cluster)


def test_a_request_that_is_aborted_while_it_loads_leaves_nothing(bench: Bench) -> None:
    own_hit = bench.seed(TEXT)
    bench.engine.call("begin", prompts={"gone": TEXT})
    bench.engine.call("go_on_until", moment="loading")
    bench.engine.call("abort", request_ids=["gone"])
    assert bench.engine.call("finish") == {}
    check_nothing_left(bench.engine, bench.cluster)
    again = bench.ask(TEXT)
    assert (again["cached"], again["tokens"]) == (BLOCKS * BLOCK, own_hit["tokens"])
    check_nothing_left(bench.engine, bench.cluster)


def test_a_preempted_request_is_restored_again(bench: Bench) -> None:
    own_hit = bench.seed(OTHER, max_tokens=24)
    before = bench.count("tokens_restored")
    bench.engine.call("begin", prompts={"r": OTHER}, max_tokens=24)
    bench.engine.call("go_on_until", moment="running")
    assert bench.count("tokens_restored") - before == BLOCKS * BLOCK
    bench.engine.call("preempt_all")
    bench.engine.call("spoil")
    answer = bench.engine.call("finish")["r"]
    assert bench.count("tokens_restored") - before >= 2 * BLOCKS * BLOCK
    assert answer["tokens"] == own_hit["tokens"]
    check_nothing_left(bench.engine, bench.cluster)


def test_a_hybrid_model_is_restored_or_refused_by_name(
    release_engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    if release_engines.release == NEWEST:
        pytest.skip("test_shapes.py has more of it")
    cluster = new_cluster(with_ssm=True)
    options: dict[str, Any] = {"model": models.path(HYBRID), "dtype": HYBRID.dtype}
    options["num_gpu_blocks_override"] = None
    options["kv_transfer_config"] = cluster.transfer_config
    if release_engines.release == OLDEST:
        with pytest.raises(EngineError, match=r"does not support handing recurrent.*vllm>=0\.29"):
            release_engines.start(vllm=options)
        return
    text = prompt(703, 400)
    with release_engines.start(vllm=options).wait_up() as first:
        cold = first.ask(text)
        own_hit = first.ask(text)
        pages = first.call("pages_by_group", prompt=text)
        cluster.wait_saved(first.call("status")["counters"]["blocks_offered"])
    with release_engines.start(vllm=options).wait_up() as second:
        second.call("spoil")
        restored = second.ask(text)
        assert (restored["cached"], restored["cached"] > 0) == (own_hit["cached"], True)
        assert restored["tokens"] == own_hit["tokens"] == cold["tokens"]
        for group, found in second.call("pages_by_group", prompt=text).items():
            assert found
            assert found.items() <= pages[group].items()
    assert cluster.vault_status("ssm_cold")["counters"]["fetched"] == 3
