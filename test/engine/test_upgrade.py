"""An upgrade under load: vaults, sidecar and engine of an earlier package become this commit's, while requests run.

TIERKV_TEST_UPGRADE_FROM names the earlier commit; HEAD~1 otherwise.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.engine import Engine, Engines
from harness.models import PLAIN, Models, prompt
from harness.packages import PROGRAM, unpacked
from harness.processes import Cluster, wait_until
from harness.releases import MAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.processes import Process

pytestmark = pytest.mark.nightly

FROM = os.environ.get("TIERKV_TEST_UPGRADE_FROM", "HEAD~1")
BLOCK, BLOCKS = 32, 5
TEXTS = [prompt(seed, BLOCKS * BLOCK + 3) for seed in range(4_800, 4_812)]
#: Rounds of all prompts between two steps, so that each step meets requests before and after it.
ROUNDS = 2


@dataclass
class Load:
    """Requests one after another, of an engine whose own cache is emptied before each; counts what went wrong."""

    engine: Engine
    right: list[list[int]]
    requests: int = 0
    failed: list[str] = field(default_factory=list)
    #: When a prompt was last restored as a whole.
    hit_at: float = 0.0
    hits: int = 0

    def __post_init__(self) -> None:
        self._swap = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            at = self.requests % len(TEXTS)
            with self._swap:
                try:
                    assert self.engine.call("reset")
                    answer = self.engine.ask(TEXTS[at])
                    assert answer["tokens"] == self.right[at], "another answer"
                except Exception as error:  # noqa: BLE001 - counted, and shown at the end
                    self.failed.append(repr(error)[:500])
                    answer = {"cached": 0}
            if answer["cached"] == BLOCKS * BLOCK:
                self.hits += 1
                self.hit_at = time.monotonic()
            self.requests += 1

    def passes(self, count: int) -> None:
        """Waits until so many more requests are answered."""
        until = self.requests + count
        wait_until(lambda: self.requests >= until, f"{count} requests", 300.0)

    def first_hit_s(self, since: float) -> float:
        """Waits for a hit that ended after `since`; returns the seconds from there."""
        wait_until(lambda: self.hit_at > since, "a hit", 300.0)
        return self.hit_at - since

    def moves_to(self, engine: Engine) -> None:
        """Sends the next request to this engine, once the present one is answered."""
        with self._swap:
            self.engine = engine


@pytest.fixture(scope="module")
def packages(folder: Path) -> tuple[Path, Path]:
    """The earlier package and this one."""
    return unpacked(FROM, folder / "earlier"), unpacked(None, folder / "present")


@pytest.fixture
def cluster(folder: Path, packages: tuple[Path, Path]) -> Iterator[Cluster]:
    """Two vaults with a disk each, and a sidecar, of the earlier package."""
    place = folder / "upgrade"
    place.mkdir()
    made = Cluster(place, on_disk=True, more_vaults=1)
    with (place / "more-0.toml").open("a") as more:
        more.write(f'data_dir = "{place / "data-0"}"\ndisk_bytes = "1GiB"\n')
    for process in (made.vault, *made.more_vaults, made.sidecar):
        process.becomes(packages[0] / PROGRAM)
    made.start()
    yield made
    made.end()


def records(cluster: Cluster) -> list[int]:
    """Durable records of each vault."""
    _, status = cluster.command("status")
    vaults = [one for one in status["targets"] if one["target"] == "kv_cold"]
    return [int(one["disk"]["durableRecords"]) if one["disk"] else 0 for one in vaults]


def restart(process: Process, program: Path) -> None:
    """Ends a program as an operator does, and starts this one in its place."""
    assert process.stop() == 0
    process.becomes(program)
    process.start()
    line = Path(f"/proc/{process.child.pid}/cmdline").read_bytes().decode().split("\0")
    assert line[1] == str(program)


def test_everything_is_upgraded_while_requests_run(
    cluster: Cluster, packages: tuple[Path, Path], models: Models, folder: Path
) -> None:
    earlier, present = packages
    options: dict[str, Any] = {"model": models.path(PLAIN), "dtype": PLAIN.dtype}
    options |= {"block_size": BLOCK, "kv_transfer_config": cluster.transfer_config}
    forges = [Engines(earlier, MAIN, shim=earlier), Engines(present, MAIN, shim=present)]
    took: dict[str, float] = {}
    try:
        engine = forges[0].start(vllm=options).wait_up()
        right = [engine.ask(text)["tokens"] for text in TEXTS]
        cluster.wait_saved(len(TEXTS) * BLOCKS)
        held = len(TEXTS) * BLOCKS
        wait_until(lambda: sum(records(cluster)) == held, "all records on the disks")
        assert all(records(cluster))
        with Load(engine, right) as load:
            load.passes(ROUNDS * len(TEXTS))
            for name, vault in (("first", cluster.vault), ("second", cluster.more_vaults[0])):
                since = time.monotonic()
                restart(vault, present / PROGRAM)
                took[f"{name} vault"] = load.first_hit_s(since)
                wait_until(lambda: sum(records(cluster)) >= held, "the records of the disk")
                load.passes(ROUNDS * len(TEXTS))
            kept = sum(records(cluster))
            since = time.monotonic()
            restart(cluster.sidecar, present / PROGRAM)
            took["sidecar"] = load.first_hit_s(since)
            load.passes(ROUNDS * len(TEXTS))
            successor = forges[1].start(vllm=options).wait_up()
            since = time.monotonic()
            load.moves_to(successor)
            took["engine"] = load.first_hit_s(since)
            engine.end()
            hits, asked = load.hits, load.requests
            load.passes(ROUNDS * len(TEXTS))
            last = (load.hits - hits) / (load.requests - asked)
    finally:
        for forge in forges:
            forge.close()
    counts = {"requests": load.requests, "failed": len(load.failed), "hits": load.hits}
    first_hits = {name: round(seconds, 2) for name, seconds in took.items()}
    counts |= {"records": held, "kept": kept}
    print(f"upgrade {json.dumps({**counts, 'firstHitS': first_hits})}")
    assert load.failed == []
    assert kept == held
    assert last == 1
