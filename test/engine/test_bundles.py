"""A long prompt computed on one machine goes to a fresh one as a bundle: its first request there is restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

pytestmark = pytest.mark.nightly

BLOCK = 32
TOKENS = 10_000
#: What a moved prompt must bring of itself.
SHARE = 0.95
LONG = Spec(**{**PLAIN.__dict__, "max_position": 16_384})


def _key(path: Path, digit: str) -> str:
    path.write_text(digit * 64)
    path.chmod(0o600)
    return str(path)


def _records(cluster: Cluster) -> int:
    _, said = cluster.command("session", "ls")
    return sum(one["records"] for one in said["sessions"])


def test_a_handbook_of_10000_tokens_is_restored_by_a_machine_that_never_computed_it(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models, folder: Path
) -> None:
    def start(cluster: Cluster) -> Engine:
        options = {"model": models.path(LONG), "dtype": LONG.dtype, "block_size": BLOCK}
        options |= {"max_model_len": TOKENS + 2 * BLOCK, "num_gpu_blocks_override": 800}
        return engines.start(vllm={**options, "kv_transfer_config": cluster.transfer_config})

    def ask(engine: Engine, **wish: Any) -> dict[str, Any]:
        (answer,) = engine.call("generate", prompts=[prompt(77, TOKENS)], transfer={"tierkv": wish})
        return dict(answer)

    here, there = new_cluster(), new_cluster()
    with start(here).wait_up() as engine:
        cold = ask(engine, session="handbook", keep_s=3600)
        here.wait_saved(TOKENS // BLOCK)
        # It is told to the vault in the sidecar's own time.
        wait_until(lambda: _records(here) == TOKENS // BLOCK, "the session is known")
    bundle = str(folder / "handbook")
    keys = ["--sign", _key(folder / "sign.key", "1"), "--seal", _key(folder / "seal.key", "2")]
    code, made = here.command("bundle", "export", bundle, "--session", "handbook", *keys)
    assert code == 0, made
    assert made["tokens"] == TOKENS // BLOCK * BLOCK
    here.end()

    take = ["bundle", "import", bundle, "--trust", made["signer"], *keys[2:]]
    with start(there).wait_up() as engine:
        # It has a name to compare with from its first request on.
        code, taken = there.command(*take, "--namespace", made["namespace"])
        assert code == 0, taken
        assert (taken["stored"], taken["blocks"]) == (made["records"], made["blocks"])
        first = ask(engine)
    print({"tokens": TOKENS, "cold": cold["cached"], "restored": first["cached"]})
    assert cold["cached"] == 0
    assert first["cached"] >= SHARE * TOKENS
    assert first["transfer"]["tierkv"]["restored_tokens"] == first["cached"]
    assert first["tokens"] == cold["tokens"]
