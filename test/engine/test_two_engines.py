"""Two engines on one sidecar: one model shares the blocks of both, others never meet; refusals at start."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from harness.engine import EngineError
from harness.models import PLAIN, Models, prompt
from harness.releases import MAIN, OLDEST
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 4
TEXT = prompt(300, BLOCKS * BLOCK + 3)
#: A text that no other engine of this module has computed.
FRESH_TEXT = prompt(301, BLOCKS * BLOCK + 3)


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


class Starter:
    """Starts engines on the module's sidecar."""

    def __init__(self, engines: Engines, cluster: Cluster, models: Models) -> None:
        self._engines = engines
        self._cluster = cluster
        self._models = models

    def __call__(self, spec: Spec = PLAIN, **changes: Any) -> Engine:
        options = {"model": self._models.path(spec), "dtype": spec.dtype, "block_size": BLOCK}
        options["kv_transfer_config"] = self._cluster.transfer_config
        return self._engines.start(vllm={**options, **changes})


@pytest.fixture(scope="module")
def start(engines: Engines, cluster: Cluster, models: Models) -> Starter:
    return Starter(engines, cluster, models)


@pytest.fixture(scope="module")
def first(start: Starter, cluster: Cluster) -> Engine:
    """An engine that has put TEXT into the vault and stays connected."""
    engine = start().wait_up()
    engine.call("generate", prompts=[TEXT])
    cluster.wait_saved(BLOCKS)
    assert cluster.counters()["blocks_saved"] == BLOCKS
    assert cluster.vault_status()["usedBytes"] > BLOCKS * engine.call("facts")["block_bytes"]
    return engine


def ask(engine: Engine, text: list[int] = TEXT, **options: Any) -> dict[str, Any]:
    return engine.ask(text, **options)


def test_a_second_engine_restores_what_the_first_has_saved(first: Engine, start: Starter) -> None:
    own_hit = ask(first)
    with start(disable_log_stats=False).wait_up() as second:
        second.call("spoil")
        restored = ask(second)
        metrics = second.call("metrics")
        assert metrics["vllm:tierkv_restored_tokens"] == BLOCKS * BLOCK
        assert metrics["vllm:tierkv_restore_seconds/vault"] == 1
        assert restored["cached"] == BLOCKS * BLOCK
        assert restored["tokens"] == own_hit["tokens"]
        assert second.call("pages", prompt=TEXT) == first.call("pages", prompt=TEXT)
        assert restored["transfer"] is None  # the request did not ask for it
        assert second.call("reset")
        again = ask(second, transfer={"tierkv": {}, "max_load_tokens": 2 * BLOCK + 1})
        said = again["transfer"]["tierkv"]
        assert again["cached"] == said["restored_tokens"] == 2 * BLOCK
        assert (said["sources"], said["why"]) == ({"host": 2 * BLOCK}, "max_load_tokens")
        assert again["tokens"] == own_hit["tokens"]
        sources = "vllm:prompt_tokens_cached_by_source"
        metrics = second.call("metrics")
        if MAIN != OLDEST:  # 0.28 does not tell sources apart
            assert metrics[f"{sources}/external_unspecified"] == BLOCKS * BLOCK
            assert metrics[f"{sources}/host"] == 2 * BLOCK


@pytest.mark.nightly
def test_another_hosts_engine_restores_what_lies_on_a_pool_of_three_vaults(
    new_cluster: Callable[..., Cluster], engines: Engines, models: Models
) -> None:
    blocks = 24
    text = prompt(302, blocks * BLOCK + 3)
    here = new_cluster(more_vaults=2)
    there = new_cluster(beside=here)
    with Starter(engines, here, models)().wait_up() as first:
        cold = ask(first, text)
        here.wait_saved(blocks)
        pages = first.call("pages", prompt=text)
    _, status = here.command("status")
    held = [target["records"] for target in status["targets"] if target["target"] == "kv_cold"]
    assert sum(held) == blocks
    assert all(held)
    with Starter(engines, there, models)().wait_up() as second:
        second.call("spoil")
        restored = ask(second, text)
        assert (cold["cached"], restored["cached"]) == (0, blocks * BLOCK)
        assert restored["tokens"] == cold["tokens"]
        assert second.call("pages", prompt=text) == pages
    assert there.counters()["blocks_restored_vault"] == blocks


OTHERS: dict[str, tuple[Spec, dict[str, Any]]] = {
    "weights": (Spec(**{**PLAIN.__dict__, "seed": 2}), {}),
    "dtype": (PLAIN, {"dtype": "bfloat16"}),
    "block size": (PLAIN, {"block_size": 64}),
    "hash": (PLAIN, {"prefix_caching_hash_algo": "sha256_cbor"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_f25_another_engine_finds_nothing_of_the_first(
    other: str, first: Engine, start: Starter, cluster: Cluster
) -> None:
    spec, changes = OTHERS[other]
    before = cluster.counters()
    with start(spec, **changes).wait_up() as second:
        assert ask(second)["cached"] == 0
        after = cluster.counters()  # before it can find its own saves
        assert ask(second)["cached"] > 0  # its own cache works
    assert after["lookup_keys"] > before["lookup_keys"]
    for name in ("lookup_hits", "blocks_restored_vault", "blocks_restored_local"):
        assert after[name] == before[name], name


#: README's launch line with another block size than its 16, because vLLM's CPU attention takes multiples of 32.
LAUNCH_LINE = """
  --kv-transfer-config '{
    "kv_connector": "TierKVConnector",
    "kv_connector_module_path": "tierkv.connectors.vllm.connector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"config_path": "/path/to/tierkv.toml"}
  }' \
  --enable-prefix-caching \
  --block-size 32
"""


def test_the_launch_line_works_as_printed(
    engines: Engines, cluster: Cluster, models: Models
) -> None:
    line = LAUNCH_LINE.replace("/path/to/tierkv.toml", str(cluster.config_path))
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype}
    before = cluster.counters()
    with engines.start(vllm=options, launch_line=shlex.split(line)).wait_up() as engine:
        facts = engine.call("facts")
        assert facts["block_tokens"] == BLOCK
        assert facts["recompute"] is True  # vLLM's default would fail requests
        cold = ask(engine, FRESH_TEXT)
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + BLOCKS)
        engine.empty()
        restored = ask(engine, FRESH_TEXT)
        assert restored["cached"] == BLOCKS * BLOCK
        assert restored["tokens"] == cold["tokens"]


def test_a_weak_hash_is_refused_by_name(start: Starter) -> None:
    with pytest.raises(EngineError, match="--prefix-caching-hash-algo xxhash"):
        start(prefix_caching_hash_algo="xxhash")


def test_a_mistyped_connector_key_is_refused_by_name(start: Starter, cluster: Cluster) -> None:
    config = {**cluster.transfer_config, "kv_connector_extra_config": {"config_pth": "x"}}
    with pytest.raises(EngineError, match=r"unknown key 'config_pth'.*'config_path'"):
        start(kv_transfer_config=config)
