"""Published KV geometries with thin compute: prompts of hundreds of megabytes are saved whole at the first visit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import LLAMA_8B, Models, prompt
from lab.geometries import GEOMETRIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster
    from lab.checkpoint import Spec

#: 4 MiB of KV each, 128 KiB a token. A step of 2,048 tokens computes twice the slots' capacity.
BLOCK = 32
BLOCKS = 72
TOKENS = BLOCKS * BLOCK + 3
#: Longer than Gemma's window, in shorter steps.
NIGHTLY_TOKENS = 2051
NIGHTLY_CHUNK = 1024


def _start(
    engines: Engines,
    cluster: Cluster,
    models: Models,
    spec: Spec,
    late_s: float = 0,
    **more: Any,
) -> Engine:
    options = {
        "model": models.path(spec),
        "dtype": spec.dtype,
        "max_model_len": TOKENS + 64,
        "kv_transfer_config": cluster.transfer_config,
        **more,
    }
    return engines.start(vllm=options, late_s=late_s).wait_up()


def _lost(cluster: Cluster) -> dict[str, int]:
    return {name: n for name, n in cluster.counters().items() if "dropped" in name and n}


@pytest.mark.parametrize("late_s", [pytest.param(0, id="at once"), pytest.param(0.5, id="late")])
def test_a_prompt_of_real_size_is_saved_on_its_first_visit_and_restored_whole(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models, late_s: float
) -> None:
    cluster = new_cluster(vault_bytes="768MiB", arena_bytes="512MiB")
    options = {
        "block_size": BLOCK,
        "max_num_batched_tokens": 2048,
        "num_gpu_blocks_override": BLOCKS + 20,
        "kv_cache_memory_bytes": 512 << 20,
    }
    text = prompt(820, TOKENS)
    with _start(engines, cluster, models, LLAMA_8B, late_s, **options) as engine:
        first = engine.ask(text)
        engine.call("go_on_until", moment="saved")
        cluster.wait_saved(BLOCKS)
        assert engine.call("reset")
        again = engine.ask(text)
    assert (first["cached"], again["cached"]) == (0, BLOCKS * BLOCK)
    assert again["tokens"] == first["tokens"]
    assert _lost(cluster) == {}
    assert late_s == 0 or cluster.counters()["shim_saves_put_off"] > 0


def _on_this_machine(name: str) -> Any:
    needs_amx = GEOMETRIES[name].kind == "deepseek_v2"
    has_amx = "amx_tile" in Path("/proc/cpuinfo").read_text().split()
    why = "vLLM caches MLA on a CPU only with AMX"
    return pytest.param(name, marks=pytest.mark.skipif(needs_amx and not has_amx, reason=why))


@pytest.mark.nightly
@pytest.mark.parametrize("name", [_on_this_machine(name) for name in GEOMETRIES])
def test_every_published_geometry_is_saved_on_its_first_visit_and_restored_whole(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models, name: str
) -> None:
    spec = GEOMETRIES[name]
    has_states = spec.kind == "qwen3_5"
    cluster = new_cluster(vault_bytes="2GiB", arena_bytes="1GiB", with_ssm=has_states)
    options: dict[str, Any] = {
        "max_num_batched_tokens": NIGHTLY_CHUNK,
        "num_gpu_blocks_override": None,
        "kv_cache_memory_bytes": 1536 << 20,
    }
    if not has_states:  # because vLLM makes attention blocks as large as states
        options["block_size"] = BLOCK
    text = prompt(820, NIGHTLY_TOKENS)
    with _start(engines, cluster, models, spec, **options) as engine:
        first = engine.ask(text)
        engine.call("go_on_until", moment="saved")
        cluster.wait_idle()
        saved = cluster.saved()
        own = engine.ask(text)
        assert engine.call("reset")
        again = engine.ask(text)
        groups = cluster.status()["engines"][0]["groups"]
    # A window keeps only the blocks that a restore of the whole prompt needs.
    of_kv = [of for of in groups if of["class"] == "kv"]
    whole = sum(of["tail"] or (NIGHTLY_TOKENS - 1) // of["tokens"] for of in of_kv)
    print(name, {"groups": groups, "needed": whole, "saved": saved, "lost": _lost(cluster)})
    assert saved >= whole
    assert first["cached"] == 0
    assert again["cached"] == own["cached"] > 0
    assert again["tokens"] == first["tokens"]
    assert not _lost(cluster).keys() - {"shim_dropped_save_out_of_window"}
