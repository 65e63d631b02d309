"""EXO's own prefix cache, stored in vaults by one file in its environment; a variable names a checkout."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from harness.mlx import EXO_VARIABLE, ExoProgram, exo_checkout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.processes import Cluster

pytestmark = pytest.mark.nightly

TOKENS = 1300
CHUNKS = TOKENS // 256


def changes(checkout: Path) -> str:
    """Returns git's description of the checkout."""
    command = ["git", "-C", str(checkout), "status", "--porcelain"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_exo_restores_what_another_process_of_it_has_kept(
    new_cluster: Callable[..., Cluster], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = exo_checkout()
    if checkout is None:
        pytest.skip(f"{EXO_VARIABLE} names no checkout of EXO")
    cluster = new_cluster()
    monkeypatch.setenv("TIERKV_CONFIG", str(cluster.config_path))
    untouched = changes(checkout)

    def run(name: str, seed: int = 1) -> dict[str, object]:
        program = ExoProgram(folder, name, checkout, seed, TOKENS)
        try:
            return program.start()
        finally:
            if name == "first":
                cluster.wait_saved(CHUNKS)
            program.kill()

    without = run("without")
    assert (without["ready"], without["restored"]) == (False, 0)
    assert cluster.command("install", "--exo-path", str(checkout))[0] == 0
    try:
        assert changes(checkout) == untouched
        first = run("first")
        assert (first["ready"], first["restored"]) == (True, 0)
        again = run("again")
        assert again["restored"] == CHUNKS * 256
        assert again["tokens"] == first["tokens"] == without["tokens"]
        assert run("stranger", seed=2)["restored"] == 0
    finally:
        assert cluster.command("uninstall", "--exo-path", str(checkout))[0] == 0
    assert changes(checkout) == untouched
    assert run("after")["ready"] is False
