"""A vault with a disk is killed, and everything restarts: another engine restores the first one's blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 4
TEXT = prompt(710, BLOCKS * BLOCK + 3)


def test_a_new_engine_restores_from_a_killed_vault(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster(on_disk=True)
    options: dict[str, Any] = {
        "model": models.path(PLAIN),
        "dtype": PLAIN.dtype,
        "block_size": BLOCK,
        "kv_transfer_config": cluster.transfer_config,
    }
    with engines.start(vllm=options).wait_up() as first:
        cold = first.ask(TEXT)
        cluster.wait_saved(BLOCKS)

        # Polled, because durability follows acceptance by some ms.
        def is_durable() -> bool:
            vault = cluster.vault_status()  # its records may include the sidecar's canaries
            return bool(vault["disk"]["durableRecords"] >= max(BLOCKS, vault["records"]))

        wait_until(is_durable, "all blocks are durable")
        pages = first.call("pages", prompt=TEXT)

    cluster.vault.kill()
    cluster.sidecar.kill()
    cluster.start()
    wait_until(lambda: not cluster.vault_status()["disk"]["recovering"], "the vault knows its disk")
    assert cluster.vault_status()["records"] == 0, "nothing is in its memory"

    with engines.start(vllm=options).wait_up() as second:
        restored = second.ask(TEXT)
        assert restored["cached"] == BLOCKS * BLOCK
        assert restored["tokens"] == cold["tokens"]
        assert second.call("pages", prompt=TEXT) == pages
    assert cluster.vault_status()["counters"]["disk_read"] == BLOCKS
