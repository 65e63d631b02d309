"""INT8: what comes back lies within the codec's bound, takes half the bytes, and never meets an exact engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, prompt
from tierkv.lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK, BLOCKS = 32, 6
#: Source bytes of a head vector over its codes and its scale.
RATIOS = {"bfloat16": 2 * 64 / 66, "float32": 4 * 64 / 66}
HEADER_BYTES = 192


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
        already = saved(lossy)
        (cold,) = engine.call("generate", prompts=[text])
        assert cold["cached"] == 0
        assert engine.call("keep_pages", prompt=text) == BLOCKS
        lossy.wait_saved(already + BLOCKS)
        (own_hit,) = engine.call("generate", prompts=[text])
        assert engine.call("reset")
        engine.call("spoil")
        (restored,) = engine.call("generate", prompts=[text])
        assert restored["cached"] == BLOCKS * BLOCK
        distance = engine.call("compare_pages", prompt=text)
    after = lossy.counters()
    assert 0 < distance["worst"] <= 1
    assert not distance["equal"]
    assert distance["snr_db"] > 35
    moved = {name: after[name] - before[name] for name in ("bytes_saved", "bytes_sent")}
    assert moved["bytes_saved"] / (moved["bytes_sent"] - BLOCKS * HEADER_BYTES) == pytest.approx(
        RATIOS[dtype]
    )
    pairs = list(zip(own_hit["tokens"], restored["tokens"], strict=True))
    alike = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    apart = [
        abs(ours - theirs)
        for ours, theirs in zip(own_hit["logprobs"][:alike], restored["logprobs"], strict=False)
    ]
    # Reported; no more than a wide fence, since a model of random weights is nearly undecided between tokens.
    assert alike >= 1
    assert max(apart) < 0.5
    for name, value in {**distance, "tokens_alike": alike, "logprob_max": max(apart)}.items():
        record_property(name, value)
    print(dtype, distance, f"tokens alike {alike}, log-probs apart by at most {max(apart):.2g}")


def test_an_exact_and_an_int8_engine_on_one_vault_never_meet(
    engines: Engines, exact: Cluster, lossy: Cluster, models: Models
) -> None:
    text = prompt(12, BLOCKS * BLOCK + 5)
    with start(engines, exact, models, "float32") as engine:
        already = saved(exact)
        engine.call("generate", prompts=[text])
        pages = engine.call("pages", prompt=text)
        exact.wait_saved(already + BLOCKS)
    records = exact.vault_status()["records"]
    with start(engines, lossy, models, "float32") as engine:
        already = saved(lossy)
        (first,) = engine.call("generate", prompts=[text])
        assert first["cached"] == 0
        lossy.wait_saved(already + BLOCKS)
        assert engine.call("reset")
        (again,) = engine.call("generate", prompts=[text])
        assert again["cached"] == BLOCKS * BLOCK
        assert engine.call("pages", prompt=text) != pages
    assert exact.vault_status()["records"] == records + BLOCKS
    with start(engines, exact, models, "float32") as engine:
        (restored,) = engine.call("generate", prompts=[text])
        assert restored["cached"] == BLOCKS * BLOCK
        assert engine.call("pages", prompt=text) == pages
    assert exact.counters()["bad_records"] == lossy.counters()["bad_records"] == 0
