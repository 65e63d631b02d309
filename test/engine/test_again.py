"""Copies in an arena: offered again to a vault that lost its memory, and gone with a flush."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 4
TOKENS = BLOCK * BLOCKS


def new_texts(first_seed: int, count: int) -> list[list[int]]:
    return [prompt(first_seed + index, TOKENS + 3) for index in range(count)]


def start(engines: Engines, cluster: Cluster, models: Models) -> Engine:
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    return engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config}).wait_up()


def ask(engine: Engine, texts: list[list[int]], salt: str | None = None) -> list[dict[str, Any]]:
    """Texts in order, because saves of one text are of no use to the next."""
    return [engine.ask(text, salt=salt) for text in texts]


def keep_copies(
    engine: Engine, cluster: Cluster, texts: list[list[int]], salt: str | None = None
) -> list[list[int]]:
    """Computes, saves and restores texts, so that their blocks are in the arena. Returns the right answers."""
    before = cluster.saved()
    right = [answer["tokens"] for answer in ask(engine, texts, salt)]
    cluster.wait_saved(before + BLOCKS * len(texts))
    engine.empty()
    restored = ask(engine, texts, salt)
    assert [answer["cached"] for answer in restored] == [TOKENS] * len(texts)
    assert [answer["tokens"] for answer in restored] == right
    cluster.wait_idle()
    return right


def test_f66_a_vault_that_lost_its_memory_gets_back_what_the_arena_holds(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    texts = new_texts(700, 4)
    with start(engines, cluster, models) as engine:
        right = keep_copies(engine, cluster, texts)
        cluster.vault.kill()
        cluster.vault.start()
        wait_until(
            lambda: cluster.counters()["copies_offered"] >= BLOCKS * len(texts),
            "all copies are in the vault again",
        )
        other = new_cluster(beside=cluster)
        with start(engines, other, models) as second:
            second.call("spoil")
            answers = ask(second, texts)
    assert sum(answer["cached"] for answer in answers) >= 0.99 * TOKENS * len(texts)
    assert [answer["tokens"] for answer in answers] == right
    assert other.counters()["blocks_restored_vault"] >= 0.99 * BLOCKS * len(texts)


def test_f60_after_a_flush_a_running_engine_and_a_new_one_compute(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    texts = new_texts(720, 4)
    traffic = new_texts(740, 12)
    with start(engines, cluster, models) as engine:
        right = keep_copies(engine, cluster, texts)
        answers: list[dict[str, Any]] = []
        is_over = threading.Event()

        def drive() -> None:
            while not is_over.is_set() or len(answers) < len(traffic):
                text = traffic[len(answers) % len(traffic)]
                answers.extend(ask(engine, [text]))

        driver = threading.Thread(target=drive)
        driver.start()
        wait_until(lambda: len(answers) >= 2, "traffic")
        code, said = cluster.command("flush", "--yes")
        is_over.set()
        driver.join()
        assert code == 0, said
        (flushed,) = said["flushed"]
        assert flushed["records"] >= BLOCKS * len(texts)
        assert [one["confirmed"] for one in flushed["sidecars"]] == [True], said
        before = cluster.counters()
        engine.empty()
        # Each text once, because computed blocks are saved anew.
        computed = ask(engine, texts[:2])
        assert [answer["cached"] for answer in computed] == [0, 0]
        assert [answer["tokens"] for answer in computed] == right[:2]
        other = new_cluster(beside=cluster)
        with start(engines, other, models) as second:
            anew = ask(second, texts[2:])
        assert [answer["cached"] for answer in anew] == [0, 0]
        assert [answer["tokens"] for answer in anew] == right[2:]
        after = cluster.counters()
        for name in ("blocks_restored_vault", "blocks_restored_local"):
            assert after[name] == before[name], name
        # Requests during the flush were answered as before.
        engine.empty()
        again = ask(engine, traffic)
        known = {tuple(text): answer["tokens"] for text, answer in zip(traffic, again, strict=True)}
        for index, answer in enumerate(answers):
            assert answer["tokens"] == known[tuple(traffic[index % len(traffic)])]


def test_f70_after_a_flush_of_one_tenant_it_computes_and_another_restores(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    texts = new_texts(760, 2)
    with start(engines, cluster, models) as engine:
        right = {salt: keep_copies(engine, cluster, texts, salt) for salt in ("gone", "kept")}
        code, said = cluster.command("flush", "--yes", "--tenant", "gone")
        assert code == 0, said
        (flushed,) = said["flushed"]
        assert flushed["records"] == BLOCKS * len(texts)
        dropped = [(one["confirmed"], one["blocks"]) for one in flushed["sidecars"]]
        assert dropped == [(True, BLOCKS * len(texts))], said
        other = new_cluster(beside=cluster)
        with start(engines, other, models) as second:
            # Each text of the tenant once, because computed blocks are saved anew.
            for asked, text in ((engine, 0), (second, 1)):
                asked.empty()
                for salt, cached in (("gone", 0), ("kept", TOKENS)):
                    (answer,) = ask(asked, texts[text : text + 1], salt)
                    assert answer["cached"] == cached, (text, salt)
                    assert answer["tokens"] == right[salt][text]
