"""INT8: restored values lie within the codec's bound, take half the bytes, and never reach an exact engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, prompt
from harness.releases import IS_LONG, MAIN, OLDEST
from harness.shapes import SHAPES, WINDOW, Starter
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK, BLOCKS = 32, 6
#: Source bytes of a head vector over its codes and its scale.
RATIOS = {"bfloat16": 2 * 64 / 66, "float32": 4 * 64 / 66}
HEADER_BYTES = 192
#: Least signal to noise, and largest distance of log-probs while the tokens are equal. The bound is wide, because a
#: model of random weights is nearly undecided between tokens.
SNR_DB, STATE_SNR_DB, LOGPROB = 35, {"bf16": 50, "int8": 35}, 0.5


def spec(dtype: str) -> Spec:
    return Spec(
        kind="llama",
        hidden=128,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=64,
        vocab=512,
        dtype=dtype,
    )


@pytest.fixture(scope="module")
def exact(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


@pytest.fixture(scope="module")
def lossy(new_cluster: Callable[..., Cluster], exact: Cluster) -> Cluster:
    """Another sidecar at the same vault."""
    return new_cluster(int8=True, beside=exact)


def start(engines: Engines, cluster: Cluster, models: Models, dtype: str) -> Engine:
    options = {"model": models.path(spec(dtype)), "dtype": dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    return engines.start(vllm=options).wait_up()


def saved(cluster: Cluster) -> int:
    counters = cluster.counters()
    return int(counters["blocks_saved"] + counters["saves_present"])


@pytest.mark.parametrize("dtype", list(RATIOS))
def test_restored_pages_lie_within_the_codecs_bound(
    dtype: str,
    engines: Engines,
    lossy: Cluster,
    models: Models,
    record_property: Callable[[str, Any], None],
) -> None:
    text = prompt(11, BLOCKS * BLOCK + 5)
    before = lossy.counters()
    with start(engines, lossy, models, dtype) as engine:
        distance = there_and_back(engine, lossy, text, BLOCKS * BLOCK, BLOCKS)
    after = lossy.counters()
    moved = {name: after[name] - before[name] for name in ("bytes_saved", "bytes_sent")}
    assert moved["bytes_saved"] / (moved["bytes_sent"] - BLOCKS * HEADER_BYTES) == pytest.approx(
        RATIOS[dtype]
    )
    report(record_property, dtype, distance)


def there_and_back(
    engine: Engine, cluster: Cluster, text: list[int], tokens: int, blocks: int, alike_min: int = 1
) -> dict[str, Any]:
    """Saves a prompt, restores it and compares pages and answers with the engine's own hit.

    At least `alike_min` tokens must be the same.
    """
    already = saved(cluster)
    cold = engine.ask(text)
    assert cold["cached"] == 0
    own_hit = engine.ask(text)
    engine.call("keep_pages", prompt=text)
    cluster.wait_saved(already + blocks)
    cluster.wait_idle()
    engine.empty()
    restored = engine.ask(text)
    assert restored["cached"] == own_hit["cached"] == tokens
    distance = dict(engine.call("compare_pages", prompt=text))
    kv = distance["kv"]
    assert 0 < kv["worst"] <= 1
    assert not kv["equal"]
    assert kv["snr_db"] > SNR_DB
    pairs = list(zip(own_hit["tokens"], restored["tokens"], strict=True))
    alike = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    apart = [
        abs(ours - theirs)
        for ours, theirs in zip(own_hit["logprobs"][:alike], restored["logprobs"], strict=False)
    ]
    assert alike >= alike_min
    assert max(apart, default=0.0) < LOGPROB
    return {**distance, "tokens_alike": alike, "logprob_max": max(apart, default=None)}


def report(record: Callable[[str, Any], None], name: str, distance: dict[str, Any]) -> None:
    for key, value in distance.items():
        record(key, value)
    print(name, distance)


@pytest.mark.skipif(not IS_LONG, reason="long")
def test_windows_and_whole_attention_lie_within_the_codecs_bound(
    engines: Engines,
    lossy: Cluster,
    models: Models,
    record_property: Callable[[str, Any], None],
) -> None:
    shape = SHAPES["sliding window"]
    with Starter(engines, lossy, models, shape)() as engine:
        groups = engine.call("facts")["groups"]
        text = prompt(13, BLOCKS * BLOCK + 5)
        distance = there_and_back(engine, lossy, text, BLOCKS * BLOCK, len(groups) * BLOCKS)
        # The last three blocks of the window in each of its groups, and all blocks of the others.
        windows = groups.count(WINDOW)
        assert distance["kv"]["blocks"] == 3 * windows + (len(groups) - windows) * BLOCKS
    report(record_property, "sliding window", distance)


@pytest.mark.skipif(not IS_LONG or MAIN == OLDEST, reason="long, and needs vLLM 0.29")
@pytest.mark.parametrize(
    ("form", "dtype"), [("bf16", "float32"), ("int8", "float32"), ("int8", "bfloat16")]
)
def test_restored_states_lie_within_the_bound_of_their_form(
    form: str,
    dtype: str,
    engines: Engines,
    new_cluster: Callable[..., Cluster],
    models: Models,
    record_property: Callable[[str, Any], None],
) -> None:
    cluster = new_cluster(int8=True, states=form, with_ssm=True)
    with Starter(engines, cluster, models, SHAPES["hybrid"])(
        {"mamba_ssm_cache_dtype": dtype}
    ) as engine:
        step = engine.call("facts")["step"]
        text = prompt(14, 2 * step + 7)
        # Where the engine itself rounds its states to 16 bits, even the first token may differ.
        alike_min = int(dtype == "float32")
        distance = there_and_back(engine, cluster, text, 2 * step, 2, alike_min)
        states = distance["ssm"]
        assert 0 < states["worst"] <= 1
        assert states["snr_db"] > STATE_SNR_DB[form]
    report(record_property, f"{form} of {dtype}", distance)


def test_an_exact_and_an_int8_engine_on_one_vault_never_meet(
    engines: Engines, exact: Cluster, lossy: Cluster, models: Models
) -> None:
    text = prompt(12, BLOCKS * BLOCK + 5)
    with start(engines, exact, models, "float32") as engine:
        already = saved(exact)
        engine.call("generate", prompts=[text])
        pages = engine.call("pages", prompt=text)
        exact.wait_saved(already + BLOCKS)
    with start(engines, lossy, models, "float32") as engine:
        already, stored = saved(lossy), lossy.counters()["blocks_saved"]
        first = engine.ask(text)
        assert first["cached"] == 0
        lossy.wait_saved(already + BLOCKS)
        assert engine.call("reset")
        again = engine.ask(text)
        assert again["cached"] == BLOCKS * BLOCK
        assert engine.call("pages", prompt=text) != pages
    assert lossy.counters()["blocks_saved"] == stored + BLOCKS, "none was there already"
    with start(engines, exact, models, "float32") as engine:
        restored = engine.ask(text)
        assert restored["cached"] == BLOCKS * BLOCK
        assert engine.call("pages", prompt=text) == pages
    assert exact.counters()["bad_records"] == lossy.counters()["bad_records"] == 0
