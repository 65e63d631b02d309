"""The shapes of cached state: a seeded model of each, the requirements on vLLM and CPU, and its engines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lab.checkpoint import Spec

from harness.models import HYBRID
from harness.releases import IS_LONG, MAIN, OLDEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.engine import Engine, Engines
    from harness.models import Models
    from harness.processes import Cluster

SMALL = Spec(hidden=128, layers=4, heads=4, kv_heads=2, head_dim=64, vocab=512)
ATTENTION, STATE, WINDOW = "FullAttentionSpec", "MambaSpec", "SlidingWindowSpec"
LATENT = "MLAAttentionSpec"


_SMALL_HYBRID = (("num_gpu_blocks_override", 40),)
#: Blocks of 32 tokens: a cache too small for the conversations of test_talk.py side by side.
_SMALL_ATTENTION = (("num_gpu_blocks_override", 14), ("max_model_len", 384))
#: A core for each of two ranks.
TWO_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


@dataclass(frozen=True)
class Shape:
    """A model, the kinds of its KV-cache groups, and the CPU features that vLLM needs for prefix caching with it."""

    spec: Spec
    groups: set[str]
    options: dict[str, Any] = field(default_factory=dict)
    harness: dict[str, Any] = field(default_factory=dict)
    needs: str = "sse2"
    #: Whether only `npm run test:nightly` runs it, because it shows little more for its minutes.
    is_long: bool = False
    #: Options for a cache that holds one conversation of test_talk.py and little more.
    small: tuple[tuple[str, int], ...] = (("num_gpu_blocks_override", 40), ("max_model_len", 512))


SHAPES = {
    "full attention": Shape(
        replace(SMALL, dtype="float32"),
        {ATTENTION},
        {"block_size": 32},
        small=_SMALL_ATTENTION,
        is_long=True,
    ),
    "two ranks": Shape(
        replace(SMALL, dtype="float32"),
        {ATTENTION},
        {"block_size": 32, "tensor_parallel_size": 2},
        {"environment": TWO_CORES},
        small=_SMALL_ATTENTION,
        is_long=True,
    ),
    "hybrid": Shape(HYBRID, {STATE, ATTENTION}, small=_SMALL_HYBRID),
    "hybrid, one KV head": Shape(
        replace(SMALL, kind="qwen3_5", layers=8, kv_heads=1),
        {STATE, ATTENTION},
        small=(*_SMALL_HYBRID, ("max_model_len", 4096)),
        is_long=True,
    ),
    "sliding window": Shape(
        replace(SMALL, kind="gemma3", dtype="float32", window=80),
        {ATTENTION, WINDOW},
        {"block_size": 32},
        small=(("num_gpu_blocks_override", 20), ("max_model_len", 288)),
    ),
    # Pages that are not interpreted, such as fp8, on every CPU.
    "opaque pages": Shape(
        replace(SMALL, dtype="float32"),
        {ATTENTION},
        {"block_size": 32},
        {"opaque": True},
        small=_SMALL_ATTENTION,
        is_long=True,
    ),
    "fp8 cache": Shape(
        SMALL,
        {ATTENTION},
        {"block_size": 32, "kv_cache_dtype": "fp8"},
        needs="avx512f",
        small=_SMALL_ATTENTION,
        is_long=True,
    ),
    "latent": Shape(replace(SMALL, kind="deepseek_v2", layers=2), {LATENT}, needs="amx_tile"),
}


#: Shapes that test_shapes.py runs one after the other; test_ranks.py has two ranks.
EACH = tuple(name for name in SHAPES if name != "two ranks")


def on_this_machine(names: Sequence[str] = EACH) -> list[Any]:
    """Returns the shapes, skipping ones that vLLM cannot run or cache on this CPU, or here with a connector."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return [
        pytest.param(
            SHAPES[name],
            id=name,
            marks=[
                pytest.mark.skipif(
                    SHAPES[name].is_long and not IS_LONG, reason="long: `npm run test:nightly`"
                ),
                pytest.mark.skipif(
                    SHAPES[name].needs not in flags, reason=f"needs {SHAPES[name].needs}"
                ),
                pytest.mark.skipif(
                    STATE in SHAPES[name].groups and MAIN == OLDEST, reason="needs vLLM 0.29"
                ),
            ],
        )
        for name in names
    ]


class Starter:
    """Starts engines of one shape, with or without tierKV."""

    def __init__(self, engines: Engines, cluster: Cluster, models: Models, shape: Shape) -> None:
        self._engines = engines
        self._cluster = cluster
        self._options = {
            "model": models.path(shape.spec),
            "dtype": shape.spec.dtype,
            "max_model_len": 2048,
            "num_gpu_blocks_override": None,
            **shape.options,
        }
        self._harness = shape.harness

    def plain(self) -> Engine:
        return self._engines.start(vllm=self._options, **self._harness)

    def __call__(self, changes: dict[str, Any] | None = None, **more: Any) -> Engine:
        options = {**self._options, "kv_transfer_config": self._cluster.transfer_config}
        options |= changes or {}
        return self._engines.start(vllm=options, **self._harness, **more).wait_up()
