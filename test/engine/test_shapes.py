"""Every shape of cached state: saved by one engine, restored by every engine; tokens as without us, pages as saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, prompt
from harness.releases import IS_LONG, IS_V2, MAIN, OLDEST
from harness.shapes import ATTENTION, SHAPES, SMALL, STATE, WINDOW, Shape, Starter, on_this_machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

TIDY = {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
Answer = dict[str, Any]
HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text()


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster(with_ssm=True)


def same(ours: Answer, theirs: Answer, tolerance: float = 1e-6) -> None:
    assert ours["tokens"] == theirs["tokens"]
    assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=tolerance)


def check_pages(restored: dict[str, dict[str, str]], saved: dict[str, dict[str, str]]) -> None:
    """Expects the engine's cache after a restore to equal the one after computing, in every group."""
    for group, pages in restored.items():
        assert pages, f"group {group} holds nothing"
        assert pages.items() <= saved[group].items()


def check_plan(cluster: Cluster, model: str, shape: Shape) -> None:
    """Expects `tierkv plan` to say the same of the model's config.json as of its engine, except for record headers."""
    (running,) = cluster.command("plan")[1]["models"]
    cache = shape.options.get("kv_cache_dtype")
    dtype = [] if cache is None else ["--kv-dtype", cache]
    (read,) = cluster.command("plan", "--model", model, *dtype)[1]["models"]
    assert running["tokenBytes"] == pytest.approx(read["tokenBytes"], rel=0.03)
    assert running["stateBytes"] == pytest.approx(read["stateBytes"], rel=0.03)


def texts_of(step: int) -> list[list[int]]:
    """Returns prompts that end one token below, at and above a boundary, and well within a block."""
    return [prompt(800 + more, 3 * step + more) for more in (-1, 0, 1, step // 2)]


@pytest.mark.parametrize("shape", on_this_machine())
def test_what_one_engine_saved_every_engine_restores(
    shape: Shape, engines: Engines, cluster: Cluster, models: Models
) -> None:
    start = Starter(engines, cluster, models, shape)
    before = cluster.counters()
    states_before = cluster.vault_status("ssm_cold")["counters"]["fetched"]
    with start() as engine:
        facts = engine.call("facts")
        assert set(facts["groups"]) == shape.groups
        assert facts["runs_v2"] == IS_V2
        check_plan(cluster, models.path(shape.spec), shape)
        step = facts["step"]
        texts = texts_of(step)
        cold = [engine.ask(text) for text in texts]
        own_hits = [engine.ask(text) for text in texts]
        assert [hit["cached"] for hit in own_hits] == [2 * step, 2 * step, 3 * step, 3 * step]
        pages = [engine.call("pages_by_group", prompt=text) for text in texts]
        offered = engine.call("status")["counters"]["blocks_offered"]
        cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + offered)
        for text, own_hit, saved in zip(texts, own_hits, pages, strict=True):
            engine.empty()
            restored = engine.ask(text)
            assert restored["cached"] == own_hit["cached"]
            same(restored, own_hit)
            # Behind what was restored the engine computes, and with AMX it rounds as the batch's length asks.
            same_by_bits = text[: restored["cached"]] if HAS_AMX else text
            check_pages(engine.call("pages_by_group", prompt=same_by_bits), saved)
        assert engine.call("status")["shim"] == TIDY
    with start() as engine:
        engine.call("spoil")
        again = [engine.ask(text) for text in texts]
    for restored, own_hit, first in zip(again, own_hits, cold, strict=True):
        same(restored, own_hit)
        # With AMX, vLLM's own hit of latent attention may round otherwise than computing the whole prompt.
        if own_hit["tokens"] == first["tokens"] or not HAS_AMX:
            assert restored["tokens"] == first["tokens"]
    with start.plain() as engine:
        assert [engine.ask(text)["tokens"] for text in texts] == [a["tokens"] for a in cold]
    after = cluster.counters()
    assert after["bad_records"] == 0
    assert after["blocks_restored_vault"] > before["blocks_restored_vault"]
    states = cluster.vault_status("ssm_cold")["counters"]["fetched"] - states_before
    assert (states > 0) == (STATE in shape.groups)


@pytest.fixture(scope="module")
def hybrid(engines: Engines, cluster: Cluster, models: Models) -> Engine:
    if MAIN == OLDEST:
        pytest.skip("refused at start")
    # A step for each block, so that a load can be caught.
    limits = {"LOAD_BYTES_PER_STEP_MAX": 1}
    return Starter(engines, cluster, models, SHAPES["hybrid"])(shim_limits=limits)


def seed(engine: Engine, cluster: Cluster, text: list[int], **options: Any) -> Answer:
    """Puts a prompt's blocks into the vaults and empties the engine; returns its own hit."""
    before, offered = cluster.counters(), counters(engine)["blocks_offered"]
    engine.ask(text, **options)
    new = counters(engine)["blocks_offered"] - offered
    cluster.wait_saved(before["blocks_saved"] + before["saves_present"] + new)
    own_hit = engine.ask(text, **options)
    engine.empty()
    return own_hit


def counters(engine: Engine) -> Counter[str]:
    return Counter(engine.call("status")["counters"])


@pytest.mark.parametrize("kind", [STATE, ATTENTION])
def test_one_flipped_bit_changes_the_answer(hybrid: Engine, cluster: Cluster, kind: str) -> None:
    """The negative control: the comparisons above can fail, by attention and by state alone."""
    facts = hybrid.call("facts")
    text = prompt(820, 2 * facts["step"] + 5)
    own_hit = seed(hybrid, cluster, text)
    # An exponent: of the first block's last V, or of the first state's first element behind the convolution's part.
    layer, byte = (1, -1) if kind == ATTENTION else (0, 3 * 512 * 2 + 3)
    group = facts["groups"].index(kind)
    hybrid.call("flip_loaded_byte", block=0, layer=layer, byte=byte, group=group, mask=0x40)
    bad = hybrid.ask(text)
    assert bad["cached"] == own_hit["cached"]
    assert bad["logprobs"] != pytest.approx(own_hit["logprobs"], abs=1e-3)
    hybrid.empty()
    same(hybrid.ask(text), own_hit)


@pytest.mark.skipif(not IS_LONG, reason="long")
@pytest.mark.parametrize("kind", [WINDOW, ATTENTION])
def test_one_flipped_bit_changes_the_answer_of_a_window_model(
    kind: str, engines: Engines, cluster: Cluster, models: Models
) -> None:
    with Starter(engines, cluster, models, SHAPES["sliding window"])() as engine:
        text = prompt(821, 6 * 32 + 5)
        own_hit = seed(engine, cluster, text)
        group = engine.call("facts")["groups"].index(kind)
        # An exponent of the last V of the last block, which every window reaches.
        engine.call("flip_loaded_byte", block=-1, layer=1, byte=-1, group=group, mask=0x40)
        bad = engine.ask(text)
        assert bad["cached"] == own_hit["cached"] == 6 * 32
        assert bad["logprobs"] != pytest.approx(own_hit["logprobs"], abs=1e-3)
        engine.empty()
        same(engine.ask(text), own_hit)


@pytest.mark.nightly
def test_a_conversation_restores_the_deepest_boundary_at_every_turn(
    hybrid: Engine, cluster: Cluster
) -> None:
    step = hybrid.call("facts")["step"]
    turns = [prompt(830 + turn, step * 2 // 3) for turn in range(6)]
    talk, hits, said = list[int](), list[int](), list[list[int]]()
    for turn in turns:  # the engine keeps its cache, so that its hits are the restorable tokens
        talk += turn
        answer = hybrid.ask(talk)
        hits.append(answer["cached"])
        said.append(answer["tokens"])
        talk += answer["tokens"]
        cluster.wait_idle()
    assert hits[-1] >= 3 * step
    hybrid.empty()
    talk = []
    for turn, hit, words in zip(turns, hits, said, strict=True):
        talk += turn
        answer = hybrid.ask(talk)
        # More than the engine's own hit, where the vaults know a deeper boundary by now.
        assert answer["cached"] >= hit
        assert answer["tokens"] == words
        talk += words
        hybrid.empty()


def test_a_hybrid_prompt_is_aborted_while_it_loads_preempted_and_restored_again(
    hybrid: Engine, cluster: Cluster
) -> None:
    step = hybrid.call("facts")["step"]
    text = prompt(840, 3 * step + 9)
    seed(hybrid, cluster, text)
    hybrid.call("begin", prompts={"gone": text})
    hybrid.call("go_on_until", moment="loading")
    hybrid.call("abort", request_ids=["gone"])
    assert hybrid.call("finish") == {}
    hybrid.empty()
    before = counters(hybrid)["tokens_restored"]
    # Tokens from before the preemption are computed again in one pass, which rounds differently; so the reference is
    # preempted, too, and reads no cache.
    answers = []
    for reads in (False, True):
        hybrid.call(
            "begin", prompts={"r": text}, max_tokens=16, prompt_logprobs=None if reads else 0
        )
        hybrid.call("go_on_until", moment="running")
        hybrid.call("preempt_all")
        hybrid.call("spoil")
        answers.append(hybrid.call("finish")["r"]["tokens"])
        hybrid.empty()
    assert answers[0] == answers[1]
    assert counters(hybrid)["tokens_restored"] - before == 2 * 3 * step
    status = hybrid.call("status")
    assert (status["shim"], status["requests"], status["blocks_in_use"]) == (TIDY, 0, 0)


def test_a_prompt_below_one_hybrid_block_is_counted_and_named_once(hybrid: Engine) -> None:
    before = counters(hybrid)["prompts_below_block"]
    for number in range(2):
        assert hybrid.ask(prompt(850 + number, 20))["cached"] == 0
    assert counters(hybrid)["prompts_below_block"] == before + 2
    assert hybrid.log.read_text().count("is not longer than one block of this hybrid model") == 1


def test_an_engine_without_prefix_caching_runs_untouched(
    engines: Engines, cluster: Cluster, models: Models
) -> None:
    """Where a backend cannot continue from cached tokens, vLLM disables caching itself (its MLA on most CPUs)."""
    plain = Shape(SMALL, {ATTENTION}, {"block_size": 32, "enable_prefix_caching": False})
    text = prompt(860, 100)
    options = {"model": models.path(plain.spec), "dtype": plain.spec.dtype, **plain.options}
    options["kv_transfer_config"] = cluster.transfer_config
    with engines.start(vllm=options) as engine:
        assert [engine.ask(text)["cached"] for _ in range(2)] == [0, 0]
        assert set(counters(engine)) == {"requests_untouched"}
