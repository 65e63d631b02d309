"""Engines with different blocks never share any, however alike their files and command lines are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 4
TEXT = prompt(340, BLOCKS * BLOCK + 3)
#: Factors of LongRoPE: the long ones apply to an engine for more tokens than the original training length.
ORIGINAL_TOKENS = 512
PAIRS = 32


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


def start(engines: Engines, cluster: Cluster, model: Path, **changes: Any) -> Engine:
    options = {"model": str(model), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    return engines.start(vllm={**options, **changes}).wait_up()


def ask(engine: Engine) -> dict[str, Any]:
    return engine.ask(TEXT)


def save(engine: Engine, cluster: Cluster) -> dict[str, Any]:
    before = cluster.saved()
    answer = ask(engine)
    cluster.wait_saved(before + BLOCKS)
    return answer


def test_f25_one_changed_number_in_one_tensor_is_another_model(
    engines: Engines, cluster: Cluster, models: Models, folder: Path
) -> None:
    model = folder / "edited"
    shutil.copytree(models.path(PLAIN), model)
    with start(engines, cluster, model) as engine:
        save(engine, cluster)
    with start(engines, cluster, model) as engine:
        assert ask(engine)["cached"] == BLOCKS * BLOCK  # the control: the same model is found again
    path = model / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size * 2 // 3)
        number = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([number[0] ^ 1]))
    with start(engines, cluster, model) as engine:
        assert ask(engine)["cached"] == 0


def test_f25_an_engine_of_another_length_is_another_model_where_rope_depends_on_it(
    engines: Engines, cluster: Cluster, models: Models, folder: Path
) -> None:
    model = folder / "longrope"
    shutil.copytree(models.path(PLAIN), model)
    config = json.loads((model / "config.json").read_text())
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * PAIRS,
        "long_factor": [float(2 + pair) for pair in range(PAIRS)],
        "original_max_position_embeddings": ORIGINAL_TOKENS,
    }
    config |= {"rope_parameters": rope, "rope_scaling": rope, "max_position_embeddings": 4096}
    config["original_max_position_embeddings"] = ORIGINAL_TOKENS
    (model / "config.json").write_text(json.dumps(config))
    with start(engines, cluster, model, max_model_len=ORIGINAL_TOKENS) as engine:
        short = save(engine, cluster)
    with start(engines, cluster, model, max_model_len=2 * ORIGINAL_TOKENS) as engine:
        other = ask(engine)
    assert other["cached"] == 0
    assert other["logprobs"] != pytest.approx(short["logprobs"], abs=1e-6)  # its results differ
