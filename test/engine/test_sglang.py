"""SGLang's own server with HiCache and tierKV: restores, what they refuse, and faults. One server for the file."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models
from harness.processes import wait_until
from harness.sglang import (
    FULL_PAGES,
    LEAST,
    LLAMA,
    PAGE,
    SglangServer,
    is_restored,
    is_same,
    storage,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.processes import Cluster

Answer = dict[str, Any]
#: Times that a prompt is sent until all of its pages are saved, on a busy machine.
SEEDS_MAX = 5


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster(with_proxy=True, wait_ms=5_000, stall_ms=2_000)


@pytest.fixture(scope="module")
def server(folder: Path, cluster: Cluster, models: Models) -> Iterator[SglangServer]:
    made = SglangServer(folder, "sglang", models.path(LLAMA), storage(cluster.config_path))
    made.start()
    cluster.wait_restoring()
    yield made
    made.end()


def seed(server: SglangServer, cluster: Cluster, number: int, **more: Any) -> Answer:
    """Let SGLang compute a prompt whose pages reach the vault; its caches are empty before and after.

    Pages that no slot was free for in time, or that came before changed weights had their name, are dropped and
    counted; the prompt is then sent again, which saves them.
    """
    server.flush()
    saved = cluster.saved() + FULL_PAGES
    answers = []
    for _ in range(SEEDS_MAX):
        dropped = dropped_saves(cluster)
        answers.append(server.generate(text(number), **more))
        wait_saved_or_dropped(cluster, saved, dropped)
        if cluster.saved() < saved:
            cluster.wait_idle()
        server.flush()
        if cluster.saved() >= saved:
            return answers[0]
    raise AssertionError(f"pages were dropped {SEEDS_MAX} times: {cluster.counters()}")


def wait_saved_or_dropped(cluster: Cluster, saved: int, dropped: int) -> None:
    try:
        wait_until(
            lambda: cluster.saved() >= saved or dropped_saves(cluster) > dropped,
            f"{saved} blocks are in the vault, or more than {dropped} were dropped",
        )
    except AssertionError as error:
        raise AssertionError(f"{error}; {cluster.counters()}") from None


def dropped_saves(cluster: Cluster) -> int:
    counters = cluster.counters()
    by_either = ("shim_dropped_save_", "dropped_")  # the plugin, or the sidecar
    return sum(count for name, count in counters.items() if name.startswith(by_either))


def test_pages_come_back_from_the_vault_bit_for_bit(server: SglangServer, cluster: Cluster) -> None:
    own = seed(server, cluster, 1)
    assert own["cached"] == 0
    restored = server.generate(text(1))
    is_restored(restored, own)
    cluster.wait_count("shim_tokens_restored", int(LEAST * FULL_PAGES * PAGE))
    # A longer prompt builds on the pages in SGLang's own cache, and its own new pages are saved behind them.
    longer = text(1) + text(2, 300)
    before = cluster.saved()
    first = server.generate(longer)
    cluster.wait_saved(before + (len(longer) - 1) // PAGE - FULL_PAGES)
    server.flush()
    again = server.generate(longer)
    assert again["restored"] >= LEAST * ((len(longer) - 1) // PAGE) * PAGE
    assert again["ids"] == first["ids"]
    # A part of the prefix in the device's cache, the rest in the vault.
    server.flush()
    server.generate(text(1)[:320])
    rest = server.generate(longer)
    assert rest["restored"] > 0
    assert rest["cached"] >= LEAST * ((len(longer) - 1) // PAGE) * PAGE
    assert rest["ids"] == first["ids"]


def test_salts_and_extra_keys_share_nothing(server: SglangServer, cluster: Cluster) -> None:
    seed(server, cluster, 3)
    keys: list[dict[str, Any]] = [{"cache_salt": "a"}, {"extra_key": "a"}]
    for more in keys:
        salted = seed(server, cluster, 3, **more)
        assert salted["restored"] == 0
        is_restored(server.generate(text(3), **more), salted)
        server.flush()
    other = server.generate(text(3), cache_salt="b")
    assert other["restored"] == 0


def test_changed_weights_begin_another_generation(
    server: SglangServer, cluster: Cluster, models: Models
) -> None:
    own = seed(server, cluster, 4)
    other = models.path(replace(LLAMA, seed=2))
    body = {"model_path": other, "flush_cache": True}
    status, answer = server.post("/update_weights_from_disk", body)
    assert status == 200, answer
    changed = seed(server, cluster, 4)
    assert changed["restored"] == 0
    assert changed["ids"] != own["ids"]
    is_restored(server.generate(text(4)), changed)
    # Without a flush the caches hold pages of both, so nothing is saved or restored.
    before = cluster.saved()
    body = {"model_path": models.path(LLAMA), "flush_cache": False}
    status, answer = server.post("/update_weights_from_disk", body)
    assert status == 200, answer
    server.generate(text(5))
    cluster.wait_count("shim_dropped_save_not_named", FULL_PAGES)
    assert cluster.saved() - before <= 1  # the answer's own last page, of the request before
    server.flush()
    back = server.generate(text(4))
    assert back["restored"] == 0
    is_same(back, own)


def test_faults_cost_restores_but_no_request(server: SglangServer, cluster: Cluster) -> None:
    own = seed(server, cluster, 6)
    assert cluster.proxy is not None
    # The vault's connection ends while records are under way.
    cluster.proxy.set_faults(dropAt=20)
    part = server.generate(text(6))
    is_same(part, own)
    cluster.proxy.set_faults()
    server.flush()
    # The sidecar hangs: the calls of HiCache's threads end by themselves.
    cluster.sidecar.freeze()
    hung = server.generate(text(6))
    is_same(hung, own)
    assert hung["restored"] == 0
    cluster.sidecar.thaw()
    server.flush()
    # The sidecar dies, and another one takes its place.
    cluster.sidecar.kill()
    alone = server.generate(text(6))
    is_same(alone, own)
    assert alone["restored"] == 0
    cluster.sidecar.start()
    cluster.wait_restoring()
    server.flush()
    is_restored(server.generate(text(6)), own)


def test_a_vault_killed_in_the_middle_of_a_restore(server: SglangServer, cluster: Cluster) -> None:
    own = seed(server, cluster, 7)
    assert cluster.proxy is not None
    # Slow enough that the kill falls into the fetch.
    cluster.proxy.set_faults(bytesPerSecond=300_000)
    found: list[Answer] = []
    asking = threading.Thread(target=lambda: found.append(server.generate(text(7))))
    asking.start()
    wait_until(
        lambda: any(engine["fetches"] for engine in cluster.status()["engines"]), "a fetch begins"
    )
    cluster.vault.kill()
    asking.join()
    cluster.proxy.set_faults()
    (part,) = found
    assert part["restored"] < FULL_PAGES * PAGE
    is_same(part, own)
    cluster.vault.start()
