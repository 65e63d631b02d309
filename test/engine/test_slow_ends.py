"""Pause, sleep and SIGTERM of a server whose saves wait for a slow vault: it ends without them and counts them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from harness.models import Models, prompt
from harness.processes import Cluster, wait_until
from harness.releases import NEWEST, OLDEST, python_of
from harness.server import Server
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.nightly

BLOCK = 32
#: As many as the server's cache holds beside the answer.
BLOCKS = 26
#: 2 MiB of KV in a block and little to compute, so that a prompt is computed far faster than it is saved.
WIDE = Spec(layers=8, hidden=1024, heads=16, kv_heads=16, head_dim=64, vocab=512, dtype="float32")
#: 8 Mbit/s: a minute for a prompt.
BYTES_PER_S = 1_000_000
#: Too few slots for a prompt, so that most of it waits in the engine.
ARENA = "64MiB"


class Slow:
    """A server of one release, behind a vault that takes 8 Mbit/s."""

    def __init__(self, server: Server, cluster: Cluster) -> None:
        self.server, self.cluster = server, cluster

    def count(self, name: str) -> int:
        return int(self.cluster.counters().get(name, 0))

    def fill(self, seed: int) -> None:
        """Computes a prompt, most of which then waits to be saved."""
        self.server.complete(prompt(seed, BLOCKS * BLOCK + 3))

    def post(self, path: str) -> float:
        """Returns the seconds until the answer."""
        began = time.monotonic()
        self.server.post(path, b"{}")
        return time.monotonic() - began


@pytest.fixture(scope="module", params=(OLDEST, NEWEST))
def slow(
    request: pytest.FixtureRequest,
    new_cluster: Callable[..., Cluster],
    models: Models,
    folder: Path,
) -> Iterator[Slow]:
    cluster = new_cluster(with_proxy=True, arena_bytes=ARENA)
    line = ["vllm", "serve", "MODEL", "--block-size", str(BLOCK), "--shutdown-timeout", "600"]
    line += ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    place = folder / f"slow-{request.param}"
    place.mkdir()
    python, dev = python_of(request.param), {"VLLM_SERVER_DEV_MODE": "1"}
    with Server(line, models.path(WIDE), place / "server.log", dev, python) as server:
        cluster.wait_restoring()
        assert cluster.proxy is not None
        cluster.proxy.set_faults(bytesPerSecond=BYTES_PER_S)
        yield Slow(server, cluster)


@pytest.mark.parametrize(
    ("at", "how"), [(0, "/pause"), (1, "/pause?mode=wait"), (2, "/sleep?level=0")]
)
def test_an_engine_pauses_without_what_a_slow_vault_would_take_a_minute_for(
    slow: Slow, at: int, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, dropped = slow.cluster.saved(), slow.count("shim_dropped_save_idle")
    slow.fill(1000 + at)
    took_s = slow.post(how)
    in_vault = slow.cluster.saved() - saved
    wait_until(lambda: slow.count("shim_dropped_save_idle") > dropped, "drops are counted")
    idle = slow.count("shim_dropped_save_idle") - dropped
    with capsys.disabled():
        print(f"\n{how}: {took_s:.1f} s; {in_vault} of {BLOCKS} blocks saved, {idle} dropped")
    assert in_vault + idle <= BLOCKS
    slow.server.post("/wake_up" if "sleep" in how else "/resume", b"{}")
    slow.cluster.wait_idle()


def test_sigterm_ends_an_engine_in_the_same_way(slow: Slow) -> None:
    """Its server waits for it as long as `--shutdown-timeout` says."""
    saved, dropped = slow.cluster.saved(), slow.count("shim_dropped_save_idle")
    slow.fill(1010)
    slow.server.stop()
    wait_until(lambda: slow.count("shim_dropped_save_idle") > dropped, "drops are counted")
    assert slow.cluster.saved() - saved < BLOCKS
