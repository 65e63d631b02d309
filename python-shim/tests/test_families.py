"""What vLLM's own models of each family keep: no layer is left out, and each page comes back byte for byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[1]
FULL, WINDOW, CHUNKS = "FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"
LATENT, WINDOWED_LATENT, STATE = "MLAAttentionSpec", "SlidingWindowMLASpec", "MambaSpec"
#: Family -> kinds of pages; and what its groups are to us: class, and whether only the latest blocks count.
KEPT = {
    "DeepSeek-V3": ({LATENT}, {("kv", False)}),
    "DeepSeek-V4": ({LATENT, WINDOWED_LATENT}, {("kv", False), ("kv", True)}),
    "Kimi-K2": ({LATENT}, {("kv", False)}),
    "Kimi-K3": ({LATENT, STATE}, {("kv", False), ("ssm", True)}),
    "GLM-5": ({LATENT}, {("kv", False)}),
    "Gemma 3": ({FULL, WINDOW}, {("kv", False), ("kv", True)}),
    "Gemma 4": ({FULL, WINDOW}, {("kv", False), ("kv", True)}),
    "Qwen3.5": ({FULL, STATE}, {("kv", False), ("ssm", True)}),
    "Llama 4": ({FULL, CHUNKS}, {("kv", False), ("kv", True)}),
    "gpt-oss": ({FULL, WINDOW}, {("kv", False), ("kv", True)}),
}
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_KIMI_K3_GEMM_AR": "0",  # kernels of GPUs
    "PYTHONPATH": ".",
}


@pytest.mark.nightly
def test_every_layer_of_each_family_is_kept() -> None:
    ran = subprocess.run(
        [sys.executable, "tests/support/family_specs.py"],
        cwd=PLACE,
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    found = {
        name: (set(said["specs"]), {(kind, is_tail) for kind, is_tail, _ in said["kept"]})
        for name, said in told.items()
    }
    assert found == KEPT
    # No layer is left out, and none is refused.
    for said in told.values():
        assert sum(layers for _, _, layers in said["kept"]) == said["layers"]
