"""Servers of SGLang one after the other, nightly: restarts in other layouts, adapters, ranks, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, write_adapter
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

    def begin(name: str, ranks: int = 1, **options: Any) -> SglangServer:
        made.append(SglangServer(folder, name, models.path(LLAMA), cluster, **options))
        made[-1].start()
        cluster.wait_restoring(ranks)
        return made[-1]

    yield begin
    for one in made:
        one.end()


def test_a_server_started_again_restores_in_another_layout(
    start: Callable[..., SglangServer], cluster: Cluster
) -> None:
    first = start("again-0", layout="page_first", io="kernel")
    own = first.ask(text(1))
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
        answer = again.ask(text(1))
        if policy == "best_effort":  # starts with the pages that have come, which may be none
            assert (answer["ids"], answer["logprobs"]) == (own["ids"], own["logprobs"])
        else:
            is_restored(answer, own)
        again.end()


def test_adapters_share_nothing_with_the_model(
    start: Callable[..., SglangServer], cluster: Cluster, folder: Path
) -> None:
    adapter = write_adapter(folder / "adapter", LLAMA)
    arguments = (
        "--enable-lora",
        "--lora-paths",
        f"one={adapter}",
        "--lora-backend",
        "torch_native",
    )
    server = start("adapters", arguments=arguments)
    before = cluster.saved()
    plain = server.ask(text(2))
    adapted = server.ask(text(2), lora_path="one")
    assert adapted["cached"] == 0
    assert adapted["ids"] != plain["ids"]
    cluster.wait_saved(before + 2 * FULL_PAGES)
    server.flush()
    is_restored(server.ask(text(2), lora_path="one"), adapted)
    is_restored(server.ask(text(2)), plain)


def test_two_ranks_restore_together(start: Callable[..., SglangServer], cluster: Cluster) -> None:
    server = start("ranks", ranks=2, arguments=("--tp-size", "2"))
    before = cluster.saved()
    own = server.ask(text(3))
    cluster.wait_saved(before + 2 * FULL_PAGES)
    server.flush()
    is_restored(server.ask(text(3)), own)


def test_without_the_plug_in_the_server_does_not_start(
    folder: Path, cluster: Cluster, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "sgl_cpu_test")
    server = SglangServer(folder, "unwatched", models.path(LLAMA), cluster)
    log = server.refuses()
    server.end()
    assert "tierKV's plug-in does not watch" in log
