"""`tierkv fidelity` against a real server with the trained model: its measurements and its verdict."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from harness.processes import ROOT
from harness.server import Server, launch_lines
from harness.trained import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.processes import Cluster

PROMPTS = 12
#: Bound of the model beyond its training length (docs/fidelity.md).
BEYOND_ITS_LENGTH_MAX = 3e-4
EXIT = {"within": 0, "beyond": 1, "undecided": 3}
_, WITH_VAULTS = launch_lines(ROOT / "README.md")


@pytest.mark.nightly
@pytest.mark.parametrize("codec", ["raw", "int8-mean-had"])
def test_the_command_measures_what_restored_blocks_change(
    codec: str, new_cluster: Callable[..., Cluster], record_property: Callable[[str, Any], None]
) -> None:
    cluster = new_cluster(kv=codec)
    line = [word.replace("/path/to/tierkv.toml", str(cluster.config_path)) for word in WITH_VAULTS]
    log = cluster.folder / "server.log"
    text = ROOT / "python-shim" / "tierkv" / "connectors" / "vllm" / "engine" / "scheduler.py"
    with Server(line, str(MODEL), log, {"VLLM_SERVER_DEV_MODE": "1"}) as server:
        cluster.wait_restoring()
        engine = f"http://127.0.0.1:{server.port}"
        arguments = ["--engine", engine, "--text", str(text), "--prompts", str(PROMPTS)]
        code, found = cluster.command("fidelity", *arguments)
    for name, value in found.items():
        record_property(name, value)
    print(codec, found)
    assert found["codec"] == codec
    assert code == EXIT[found["verdict"]], found
    # A clear verdict ends the measurement after a round of 8.
    assert found["restored"] in (8, PROMPTS)
    tierkv = found["tierkv"]
    if codec == "raw":
        assert found["isWithin"]
        assert (tierkv["same"], tierkv["kldMax"]) == (found["restored"], pytest.approx(0, abs=1e-9))
    else:
        assert 0 < tierkv["kldMean"] < BEYOND_ITS_LENGTH_MAX


@pytest.mark.nightly
def test_the_command_starts_an_engine_for_a_models_files() -> None:
    text = ROOT / "python-shim" / "tierkv" / "connectors" / "vllm" / "engine" / "scheduler.py"
    line = ["node", "bin/tierkv.js", "fidelity", "--model", str(MODEL), "--text", str(text)]
    ran = subprocess.run(
        [*line, "--prompts", str(PROMPTS), "--json"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout, ran.stderr
    found = json.loads(ran.stdout)
    print(found)
    assert found["restored"] in (8, PROMPTS)
    assert found["codec"].startswith("int8")
    # In float32, computed answers equal the own cache's.
    assert found["ownCache"]["kldMean"] == pytest.approx(0, abs=1e-9)
    # Prompts exceed the 512 tokens of the training, beyond which codecs cost the model more.
    assert 0 < found["tierkv"]["kldMean"] < BEYOND_ITS_LENGTH_MAX
    assert ran.returncode == EXIT[found["verdict"]]
    assert " answers, prompts 1 to 8 of at most " in ran.stderr, "progress reaches a pipe"
