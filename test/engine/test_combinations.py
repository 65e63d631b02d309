"""tierKV together with other features of an engine: drafts, another connector, pictures, embeddings in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt, write_adapter
from harness.releases import IS_LONG, MAIN, OLDEST
from harness.sight import PICTURE, PICTURE_TOKENS, write_sighted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

pytestmark = pytest.mark.nightly

BLOCK = 32
OPTIONS: dict[str, Any] = {"dtype": PLAIN.dtype, "block_size": BLOCK}


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


def test_with_speculative_decoding_only_what_was_accepted_comes_back(
    engines: Engines, cluster: Cluster, models: Models
) -> None:
    """Drafts come from the prompt itself; KV of rejected ones stays in blocks for a while."""
    options = {**OPTIONS, "model": models.path(PLAIN)}
    text = prompt(910, 2 * BLOCK) * 2
    with engines.start(vllm=options) as plain:
        said = plain.ask(text, max_tokens=70)["tokens"]
        turn = text + said + prompt(911, 3)
        wanted = plain.ask(turn)["tokens"]
    options["speculative_config"] = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
    options["kv_transfer_config"] = cluster.transfer_config
    with engines.start(vllm=options).wait_up() as engine:
        assert engine.ask(text, max_tokens=70)["tokens"] == said
        cluster.wait_saved(engine.call("status")["counters"]["blocks_offered"])
        blocks = (len(text) + len(said) - 1) // BLOCK
        assert cluster.counters()["blocks_saved"] == blocks
        engine.empty()
        again = engine.ask(turn)
        assert again["cached"] == blocks * BLOCK
        assert again["tokens"] == wanted


def beside(cluster: Cluster, models: Models, folder: Path) -> dict[str, Any]:
    """Options of an engine with tierKV and another connector."""
    other = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "example")},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [cluster.transfer_config, other]},
    }
    return {**OPTIONS, "model": models.path(PLAIN), "kv_transfer_config": both}


def test_beside_another_connector_ours_restores_and_counts(
    engines: Engines, cluster: Cluster, models: Models, folder: Path
) -> None:
    text = prompt(912, 4 * BLOCK + 3)
    before = cluster.counters()
    with engines.start(vllm=beside(cluster, models, folder)) as engine:
        cluster.wait_restoring()
        cold = engine.ask(text)
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + 4)
        engine.empty()
        again = engine.ask(text)
        assert (again["cached"], again["tokens"]) == (4 * BLOCK, cold["tokens"])
    after = cluster.counters()
    restored = "blocks_restored_vault"
    assert after[restored] - before[restored] == 4


def test_beside_another_connector_lost_blocks_are_computed_and_no_request_fails(
    engines: Engines, cluster: Cluster, models: Models, folder: Path
) -> None:
    text = prompt(915, 4 * BLOCK + 3)
    before = cluster.counters()
    environment = {"TIERKV_FAILPOINTS": "shim.load.copy=1*return"}
    options = beside(cluster, models, folder)
    with engines.start(vllm=options, environment=environment) as engine:
        cluster.wait_restoring()
        cold = engine.ask(text)
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + 4)
        engine.empty()
        assert engine.ask(text)["tokens"] == cold["tokens"]
        cluster.wait_count("shim_load_without_arena", 1)


@pytest.mark.skipif(MAIN == OLDEST, reason="its LLaVA needs older transformers than its lock has")
def test_a_picture_is_found_again_and_never_taken_for_another(
    engines: Engines, cluster: Cluster, folder: Path
) -> None:
    """The same text around each picture: one shared block before it, and three from it on."""
    text = [*prompt(913, BLOCK + 8, PICTURE), PICTURE, *prompt(914, 3 * BLOCK, PICTURE)]
    whole = (len(text) - 1 + PICTURE_TOKENS) // BLOCK * BLOCK
    options = {**OPTIONS, "model": write_sighted(folder / "sighted"), "skip_tokenizer_init": False}
    options["kv_transfer_config"] = cluster.transfer_config
    with engines.start(vllm=options).wait_up() as engine:
        before = cluster.counters()
        cold = [engine.ask(text, picture=seed) for seed in (1, 2)]
        assert [answer["cached"] for answer in cold] == [0, BLOCK]
        assert cold[0]["tokens"] != cold[1]["tokens"]
        own_hits = [engine.ask(text, picture=seed) for seed in (1, 2)]
        assert [hit["cached"] for hit in own_hits] == [whole, whole]
        offered = engine.call("status")["counters"]["blocks_offered"]
        assert offered == 2 * whole // BLOCK - 1
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + offered)
        for seed, own_hit in zip((1, 2), own_hits, strict=True):
            engine.empty()
            restored = engine.ask(text, picture=seed)
            assert (restored["cached"], restored["tokens"]) == (whole, own_hit["tokens"])
            assert restored["logprobs"] == pytest.approx(own_hit["logprobs"], abs=1e-6)
        engine.empty()
        stranger = engine.ask(text, picture=3)
        assert stranger["cached"] == BLOCK
        # A request for the log-probs of the prompt gets nothing from any cache.
        alone = engine.ask(text, picture=3, prompt_logprobs=0)
        assert (alone["cached"], alone["tokens"]) == (0, stranger["tokens"])


#: Counters of an engine's start, whatever it serves.
OF_START = {"page_probe_us", "pages_canonical"}


def counters(engine: Engine) -> set[str]:
    """Names what counted anything since the engine was ready."""
    return set(engine.call("status")["counters"]) - OF_START


def test_a_pooling_model_runs_untouched(engines: Engines, cluster: Cluster, models: Models) -> None:
    options = {**OPTIONS, "model": models.path(PLAIN), "runner": "pooling"}
    options["skip_tokenizer_init"] = False  # because LLM.embed requires it
    text = prompt(920, 3 * BLOCK)
    with engines.start(vllm=options) as plain:
        wanted = plain.call("embed", prompt=text)
    with engines.start(
        vllm={**options, "kv_transfer_config": cluster.transfer_config}
    ).wait_up() as engine:
        for _ in range(2):
            assert engine.call("embed", prompt=text) == wanted
        assert counters(engine) <= {"requests_untouched"}


def test_a_prompt_given_as_embeddings_runs_untouched(
    engines: Engines, cluster: Cluster, models: Models
) -> None:
    options = {**OPTIONS, "model": models.path(PLAIN), "enable_prompt_embeds": True}
    options["kv_transfer_config"] = cluster.transfer_config
    with engines.start(vllm=options).wait_up() as engine:
        one, two = (engine.call("generate_embedded", seed=1, tokens=3 * BLOCK) for _ in range(2))
        assert one == two
        assert engine.call("generate_embedded", seed=2, tokens=3 * BLOCK) != one
        assert counters(engine) == {"requests_untouched"}


@pytest.mark.skipif(not IS_LONG, reason="long")
def test_adapters_run_untouched_beside_requests_that_are_restored(
    engines: Engines, cluster: Cluster, models: Models, folder: Path
) -> None:
    """Adapters are neither saved nor restored, because block hashes name an adapter and not its weights."""
    options = {**OPTIONS, "model": models.path(PLAIN), "enable_lora": True, "max_lora_rank": 8}
    adapter = write_adapter(folder / "adapter", PLAIN)
    text = prompt(930, 4 * BLOCK + 3)
    with engines.start(vllm=options) as plain:
        wanted = plain.ask(text, adapter=adapter)["tokens"]
    options["kv_transfer_config"] = cluster.transfer_config
    before = cluster.counters()
    with engines.start(vllm=options).wait_up() as engine:
        for _ in range(2):
            adapted = engine.ask(text, adapter=adapter)
            assert (adapted["cached"], adapted["tokens"]) == (0, wanted)
            assert engine.call("reset")
        cold = engine.ask(text)
        assert cold["cached"] == 0
        assert cold["tokens"] != wanted
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + 4)
        engine.empty()
        adapted = engine.ask(text, adapter=adapter)
        assert (adapted["cached"], adapted["tokens"]) == (0, wanted)
        again = engine.ask(text)
        assert (again["cached"], again["tokens"]) == (4 * BLOCK, cold["tokens"])
        assert engine.call("status")["counters"]["requests_untouched"] == 3
    after = cluster.counters()
    assert after["blocks_saved"] - before["blocks_saved"] == 4
