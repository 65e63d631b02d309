"""README's launch lines start a server that answers, with our connector, and saves; a small model replaces theirs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt
from harness.processes import ROOT, sidecar_status, wait_until
from harness.server import Server, launch_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.processes import Cluster

#: Tokens above two of vLLM's default blocks on a CPU.
TOKENS = 300
READY_S = 600.0
ALONE, WITH_VAULTS = launch_lines(ROOT / "README.md")


def engines_of(socket: Path | str) -> list[dict[str, Any]]:
    """Returns the engines that the sidecar there names; none while no sidecar runs."""
    try:
        return list(sidecar_status(str(socket))["engines"])
    except OSError:
        return []


def check_saves(server: Server, model: str, socket: Path | str) -> None:
    """Expects the server to answer, its engine to be known to the sidecar, and its blocks to be saved."""
    seeds = itertools.count(950)

    def is_saving() -> bool:
        answer = server.complete(prompt(next(seeds), TOKENS))
        assert answer["usage"] == {
            **answer["usage"],
            "prompt_tokens": TOKENS,
            "completion_tokens": 4,
        }
        return bool(sidecar_status(str(socket))["counters"]["blocks_saved"])

    assert server.complete(prompt(949, TOKENS))["usage"]["completion_tokens"] == 4
    wait_until(lambda: engines_of(socket), "the sidecar names the engine", READY_S)
    # Early blocks are lost, because the sidecar starts before its vault and before the engine has a name.
    wait_until(is_saving, "blocks are saved", READY_S)
    (engine,) = engines_of(socket)
    assert engine["model"] == model


# Nightly, because a server imports vLLM twice; every change parses the lines and starts engines alone.
@pytest.mark.nightly
def test_the_line_for_one_machine_needs_nothing_else(models: Models, folder: Path) -> None:
    """Configured in advance: only the memory limit and the time to end."""
    home = folder / "r"
    config = home / ".config" / "tierkv"
    config.mkdir(mode=0o700, parents=True)
    (config / "tierkv.toml").write_text(
        '[sidecar]\narena_bytes = "64MiB"\nidle_exit_s = 2\n[vault]\nmax_bytes = "128MiB"\n'
    )
    model = models.path(PLAIN)
    socket = home / "tierkv" / "sidecar.sock"
    environment = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    with Server(ALONE, model, home / "server.log", environment) as server:
        check_saves(server, model, socket)
    sockets = {"sidecar.sock", "sidecar.sock.vault", "sidecar.sock.vault.lanes"}
    wait_until(
        lambda: sockets.isdisjoint(entry.name for entry in socket.parent.iterdir()),
        "the sidecar and its vault are gone, with their sockets",
        READY_S,
    )


@pytest.mark.nightly
def test_the_line_with_vaults_uses_the_file_that_it_names(
    new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    model = models.path(PLAIN)
    printed = "/path/to/tierkv.toml"
    assert any(printed in word for word in WITH_VAULTS)
    line = [word.replace(printed, str(cluster.config_path)) for word in WITH_VAULTS]
    with Server(line, model, cluster.folder / "server.log", {}) as server:
        check_saves(server, model, cluster.socket)
    wait_until(lambda: not engines_of(cluster.socket), "the engine is gone", READY_S)
