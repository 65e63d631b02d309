"""An engine alone on its machine starts a sidecar, which keeps a vault and ends when idle."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.models import PLAIN, Models, prompt
from harness.processes import sidecar_status, wait_until

if TYPE_CHECKING:
    from harness.engine import Engines

BLOCK = 32
BLOCKS = 4
IDLE_S = 2
TEXT = prompt(710, BLOCKS * BLOCK + 3)


def test_an_engine_alone_starts_saves_restores_and_leaves_no_sidecar(
    engines: Engines, models: Models, folder: Path
) -> None:
    place = folder / "alone"
    place.mkdir()
    path = place / "run" / "s.sock"
    config = place / "tierkv.toml"
    config.write_text(
        f'[sidecar]\nsocket = "{path}"\narena_bytes = "64MiB"\nidle_exit_s = {IDLE_S}\n'
        '[vault]\nmax_bytes = "128MiB"\n[turbo_quant]\nenabled = false\n'
        '[restore]\nwait_ms = 20000\nstall_ms = 10000\nwhen = "always"\n'
    )
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = {
        "kv_connector": "TierKVConnector",
        "kv_connector_module_path": "tierkv.connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"config_path": str(config)},
    }

    def counters() -> dict[str, int]:
        return dict(sidecar_status(str(path))["counters"])

    with engines.start(vllm=options) as first:
        first.wait_up()
        # Early blocks are lost, because the sidecar starts before its vault and before the engine has slots.
        seeds = itertools.count(720)

        def is_saving() -> bool:
            first.call("generate", prompts=[prompt(next(seeds), BLOCK)])
            return bool(counters()["blocks_saved"])

        wait_until(is_saving, "blocks are saved")
        assert sidecar_status(str(path))["vaults"]["kv"][0]["isLent"]
        before = counters()["blocks_saved"]
        first.call("generate", prompts=[TEXT])
        wait_until(lambda: counters()["blocks_saved"] >= before + BLOCKS, "the text is saved")
        own_hit = first.ask(TEXT)
        pages = first.call("pages", prompt=TEXT)
        with engines.start(vllm=options).wait_up() as second:
            second.call("spoil")
            restored = second.ask(TEXT)
            assert restored["cached"] == BLOCKS * BLOCK
            assert restored["tokens"] == own_hit["tokens"]
            assert second.call("pages", prompt=TEXT) == pages
            assert counters()["blocks_restored_vault"] == BLOCKS
    wait_until(lambda: not _is_heard(path), f"the sidecar ends after {IDLE_S} s without an engine")
    sockets = {"s.sock", "s.sock.vault", "s.sock.vault.lanes"}
    wait_until(
        lambda: sockets.isdisjoint(entry.name for entry in path.parent.iterdir()),
        "the sidecar and its vault are gone, with their sockets",
    )


def _is_heard(path: Path) -> bool:
    try:
        sidecar_status(str(path))
    except OSError:
        return os.path.exists(path)
    return True
