"""SGLang's own pools through sidecar and vaults, without an engine: layouts, MLA, ranks, names and generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models
from harness.sglang import SglangPools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.processes import Cluster

PAGES = 12
#: Layouts of the host's pool, each with an I/O back-end that SGLang allows for it.
LAYOUTS = [
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
    ("layer_first", "kernel"),
    ("layer_first", "direct"),
]


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


@pytest.fixture
def start(folder: Path, cluster: Cluster, models: Models) -> Iterator[Callable[..., SglangPools]]:
    """Starts pools that end with the test."""
    made: list[SglangPools] = []

    def begin(layout: str = "page_first_direct", io: str = "direct", **order: Any) -> SglangPools:
        name = f"pools-{len(list(folder.glob('pools-*.log')))}"
        model = models.path(PLAIN)
        made.append(SglangPools(folder, name, cluster, model, layout=layout, io=io, **order))
        made[-1].start()
        assert made[-1].run("ready") == {"named": True}
        return made[-1]

    yield begin
    for one in made:
        one.end()


def save(pools: SglangPools, cluster: Cluster, chain: str, seed: int) -> str:
    """Save a chain's pages with random values; return their digest."""
    before = cluster.saved()
    digest: str = pools.run("fill", seed=seed, pages=PAGES)["digest"]
    assert pools.run("save", chain=chain, skip=0, pages=PAGES)["done"] == [True] * PAGES
    cluster.wait_saved(before + PAGES)
    return digest


def load(pools: SglangPools, chain: str, skip: int = 0, batch: int = 5) -> dict[str, Any]:
    found: dict[str, Any] = pools.run("load", chain=chain, skip=skip, pages=PAGES - skip, batch=batch)
    return found


@pytest.mark.parametrize("mla", [False, True])
def test_pages_of_one_layout_are_read_in_every_other(
    mla: bool, start: Callable[..., SglangPools], cluster: Cluster
) -> None:
    digests = {}
    for number, (layout, io) in enumerate(LAYOUTS):
        pools = start(layout, io, mla=mla)
        for other, digest in digests.items():
            found = load(pools, f"{mla} {other}")
            assert found == {"found": PAGES, "done": [True] * PAGES, "digest": digest}, (layout, other)
        digests[layout, io] = save(pools, cluster, f"{mla} {layout, io}", number)
        pools.end()
    assert len(set(digests.values())) == len(LAYOUTS)
