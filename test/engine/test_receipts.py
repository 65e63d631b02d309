"""A request that asks for a receipt names one in its answer; the vault confirms it until its records go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
TOKENS = 20 * BLOCK + 3


def ask(engine: Engine, **wish: Any) -> dict[str, Any]:
    transfer = {"tierkv": wish}
    return engine.ask(prompt(961, TOKENS), transfer=transfer)


def test_f96_a_restored_answer_names_its_receipt_and_the_vault_holds_what_that_says(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models
) -> None:
    cluster = new_cluster()
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    with engines.start(vllm=options).wait_up() as engine:
        cold = ask(engine, receipt=True)["transfer"]["tierkv"]
        assert (cold["restored_tokens"], cold.get("receipt")) == (0, None)
        cluster.wait_saved(20)
        # A part that the engine keeps itself.
        own = prompt(961, TOKENS)[: 5 * BLOCK + 1]
        assert engine.call("reset")
        engine.call("generate", prompts=[own], transfer={"max_load_tokens": 0})
        warm = ask(engine, receipt=True)["transfer"]["tierkv"]
        assert warm["restored_tokens"] == 15 * BLOCK
        name = warm["receipt"]
        wait_until(lambda: cluster.counters().get("receipts_written") == 1, "it is written")
        code, said = cluster.command("verify", name)
        assert (code, said["differs"], said["gone"]) == (0, 0, 0)
        assert (said["same"], said["blocks"]) == (15, 15)
        assert said["tokens"] == {"from": 5 * BLOCK, "to": 20 * BLOCK}
        assert cluster.command("flush", "--yes")[0] == 0
        code, said = cluster.command("verify", name)
        assert (code, said["same"], said["gone"]) == (1, 0, 15)
