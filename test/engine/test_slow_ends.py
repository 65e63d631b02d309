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
#: Counters of blocks that are not saved, by the shim (the engine's cache was reset, the engine ended, nothing was
#: saved for long) and by the sidecar (its queue, its vault, an engine that ended).
DROPPED = ("shim_dropped_save_", "dropped_")
#: Too few slots for a prompt, so that most of it waits in the engine.
ARENA = "64MiB"


class Slow:
    """A server of one release, behind a vault that takes 8 Mbit/s."""

    def __init__(self, server: Server, cluster: Cluster) -> None:
        self.server, self.cluster = server, cluster

    def settled(self) -> tuple[int, int]:
        """Return the blocks that the vault took, and those that were dropped."""
        counts = self.cluster.counters()
        dropped = [count for name, count in counts.items() if name.startswith(DROPPED)]
        return self.cluster.saved(), sum(map(int, dropped))

    def is_settled(self, blocks: int) -> bool:
        """Tell whether so many blocks were saved or dropped; saves go on in steps, after a short request."""
        self.server.complete(prompt(9, 3))
        return sum(self.settled()) == blocks

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
    saved, dropped = slow.settled()
    slow.fill(1000 + at)
    took_s = slow.post(how)
    in_vault = slow.cluster.saved() - saved
    assert in_vault < BLOCKS, "the engine paused after everything was saved"
    slow.server.post("/wake_up" if "sleep" in how else "/resume", b"{}")
    wait_until(lambda: slow.is_settled(saved + dropped + BLOCKS), "each block is counted")
    with capsys.disabled():
        print(f"\n{how}: {took_s:.1f} s; {in_vault} of {BLOCKS} blocks saved by then, ", end="")
        print(f"{slow.settled()[1] - dropped} dropped")


def test_sigterm_ends_an_engine_in_the_same_way(slow: Slow) -> None:
    """Its server waits for it as long as `--shutdown-timeout` says."""
    saved, dropped = slow.settled()
    slow.fill(1010)
    slow.server.stop()
    assert slow.cluster.saved() - saved < BLOCKS, "the engine ended after everything was saved"
    try:
        wait_until(lambda: sum(slow.settled()) == saved + dropped + BLOCKS, "each block is counted")
    except AssertionError as error:
        counts = {name: count for name, count in slow.cluster.counters().items() if count}
        raise AssertionError(f"{saved} saved and {dropped} dropped before; now {counts}") from error
