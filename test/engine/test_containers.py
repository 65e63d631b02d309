"""A real engine in its own PID and mount namespace, as in a container, with its sidecar outside: saved, restored."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest
from harness.engine import Engine, Engines
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.processes import Cluster

BLOCK: Final = 32
BLOCKS: Final = 4
#: Command prefix with a private /proc, so that nothing of the sidecar is visible there.
APART: Final = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]


def can_unshare() -> bool:
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_unshare(), reason="namespaces cannot be made here")


class EnginesApart(Engines):
    """Starts engines of a zygote that is process 1 of its namespace."""

    under = APART

    def start(self, **config: Any) -> Engine:
        engine = super().start(**config)
        engine.pid = 0  # because the other namespace's number must not be signalled here
        return engine


@pytest.fixture(scope="module")
def engines_apart(folder: Path) -> Iterator[EnginesApart]:
    place = folder / "apart"
    place.mkdir()
    engines = EnginesApart(place)
    yield engines
    engines.close()


def test_an_engine_in_a_container_saves_and_another_restores(
    engines_apart: EnginesApart, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    text = prompt(900, BLOCKS * BLOCK + 1)
    answers = []
    for _ in range(2):
        engine = engines_apart.start(vllm=options)
        cluster.wait_restoring()
        answer = engine.ask(text)
        answers.append(answer)
        cluster.wait_saved(BLOCKS)
        engine.end()
        wait_until(lambda: not cluster.status()["engines"], "the engine is gone", 60.0)
    first, again = answers
    assert (first["cached"], again["cached"]) == (0, BLOCKS * BLOCK)
    assert again["tokens"] == first["tokens"]
    code, status = cluster.command("status")
    assert (code, status["findings"]) == (0, [])
