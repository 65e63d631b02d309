"""Servers of SGLang one after the other, nightly: restarts in other layouts, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models
from harness.sglang import FULL_PAGES, LLAMA, SglangServer, is_restored, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.processes import Cluster

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


@pytest.fixture
def start(folder: Path, cluster: Cluster, models: Models) -> Iterator[Callable[..., SglangServer]]:
    """Starts servers that end with the test."""
    made: list[SglangServer] = []

    def begin(name: str, **options: Any) -> SglangServer:
        made.append(SglangServer(folder, name, models.path(LLAMA), cluster, **options))
        made[-1].start()
        cluster.wait_restoring()
        return made[-1]

    yield begin
    for one in made:
        one.end()


def test_a_server_started_again_restores_in_another_layout(
    start: Callable[..., SglangServer], cluster: Cluster
) -> None:
    first = start("again-0", layout="page_first", io="kernel")
    own = first.generate(text(1))
    cluster.wait_saved(FULL_PAGES)
    first.end()
    for number, (layout, io, policy) in enumerate(
        (
            ("layer_first", "kernel", "wait_complete"),
            ("layer_first", "direct", "timeout"),
            ("page_first_direct", "direct", "best_effort"),
        )
    ):
        again = start(f"again-{number + 1}", layout=layout, io=io, policy=policy)
        answer = again.generate(text(1))
        if policy == "best_effort":  # starts with the pages that have come, which may be none
            assert (answer["ids"], answer["logprobs"]) == (own["ids"], own["logprobs"])
        else:
            is_restored(answer, own)
        again.end()


def test_without_the_plug_in_the_server_does_not_start(
    folder: Path, cluster: Cluster, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "sgl_cpu_test")
    server = SglangServer(folder, "unwatched", models.path(LLAMA), cluster)
    log = server.refuses()
    server.end()
    assert "tierKV's plug-in does not watch" in log
