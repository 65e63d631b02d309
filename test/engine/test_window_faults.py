"""Restores by vLLM's own scheduler, most of them in windows: whatever happens in the middle, no wrong page is read."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from harness.engine import ENVIRONMENT
from harness.models import PLAIN, Models
from harness.processes import ROOT
from harness.releases import NEWEST, python_of

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 1800.0
FEW = 90
MANY = 10_000
SEED = int(os.environ.get("TIERKV_TEST_SEED", "1"))
FAULTS = {
    "vault_down",
    "bad_record",
    "slower",
    "flushed",
    "hang",
    "abort",
    "preempt",
    "copy_failed",
}


@pytest.mark.parametrize("beside", ["", "window"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("restores", [FEW, pytest.param(MANY, marks=pytest.mark.nightly)])
def test_no_fault_in_a_window_makes_a_wrong_page(
    folder: Path, models: Models, restores: int, ranks: int, beside: str
) -> None:
    print(f"TIERKV_TEST_SEED={SEED}")
    paths = os.pathsep.join([str(ROOT / "test/engine"), str(ROOT / "python-shim")])
    more = {"PYTHONPATH": paths, "XDG_STATE_HOME": str(folder / "state")}
    named = [models.path(PLAIN), str(SEED), str(restores), str(ranks), beside]
    ran = subprocess.run(
        [python_of(NEWEST), "-m", "harness.window_scenes", *named],
        env={**os.environ, **ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR", **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert set(found["faults"]) == FAULTS
    assert found["loads"] > restores / 4
    assert (found["shim"].get("loads_windowed", 0) > restores / 2) is (not beside)
    assert (found["wrong"], found["wrong_frames"], found["leaked"]) == (0, [], 0)
    assert (found["off"], found["errors"]) == (0, [])
    assert not any(found["status"].values())
