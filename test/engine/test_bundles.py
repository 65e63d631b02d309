"""A long prompt computed on one machine moves to a fresh one as a bundle: its first request there is restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until
from harness.releases import MAIN, OLDEST
from harness.shapes import SHAPES, Starter
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

pytestmark = pytest.mark.nightly

BLOCK = 32
TOKENS = 10_000
#: Share of a moved prompt that must be restored.
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
        return engine.ask(prompt(77, TOKENS), transfer={"tierkv": wish})

    here, there = new_cluster(), new_cluster()
    with start(here).wait_up() as engine:
        cold = ask(engine, session="handbook", keep_s=3600)
        here.wait_saved(TOKENS // BLOCK)
        # Polled, because the sidecar reports sessions in its own time.
        wait_until(lambda: _records(here) == TOKENS // BLOCK, "the session is known")
    bundle = str(folder / "handbook")
    keys = ["--sign", _key(folder / "sign.key", "1"), "--seal", _key(folder / "seal.key", "2")]
    code, made = here.command("bundle", "export", bundle, "--session", "handbook", *keys)
    assert code == 0, made
    assert made["tokens"] == TOKENS // BLOCK * BLOCK
    here.end()

    take = ["bundle", "import", bundle, "--trust", made["signer"], *keys[2:]]
    with start(there).wait_up() as engine:
        # A namespace to compare with exists only after the first request.
        code, taken = there.command(*take, "--namespace", made["namespace"])
        assert code == 0, taken
        assert (taken["stored"], taken["blocks"]) == (made["records"], made["blocks"])
        first = ask(engine)
    print({"tokens": TOKENS, "cold": cold["cached"], "restored": first["cached"]})
    assert cold["cached"] == 0
    assert first["cached"] >= SHARE * TOKENS
    assert first["transfer"]["tierkv"]["restored_tokens"] == first["cached"]
    assert first["tokens"] == cold["tokens"]


@pytest.mark.skipif(MAIN == OLDEST, reason="hybrid models need vLLM 0.29")
def test_a_hybrid_models_states_travel_with_its_attention_and_leave_receipts(
    engines: Engines, new_cluster: Callable[..., Cluster], models: Models, folder: Path
) -> None:
    shape = SHAPES["hybrid"]
    here, there = new_cluster(with_ssm=True), new_cluster(with_ssm=True)
    text = prompt(78, 1500)

    def ask(engine: Engine, **wish: Any) -> dict[str, Any]:
        return engine.ask(text, transfer={"tierkv": wish})

    with Starter(engines, here, models, shape)() as engine:
        step = engine.call("facts")["step"]
        cold = ask(engine, session="hybrid", keep_s=3600)
        own = ask(engine)
        offered = engine.call("status")["counters"]["blocks_offered"]
        here.wait_saved(offered)
        wait_until(lambda: _records(here) > 0, "the session is known")
    assert own["cached"] >= step
    bundle = str(folder / "hybrid")
    keys = ["--sign", _key(folder / "sign.key", "1"), "--seal", _key(folder / "seal.key", "2")]
    code, made = here.command("bundle", "export", bundle, "--session", "hybrid", *keys)
    assert code == 0, made
    assert {layer["class"] for layer in _layers(bundle)} == {"kv", "ssm"}
    here.end()

    take = ["bundle", "import", bundle, "--trust", made["signer"], *keys[2:]]
    with Starter(engines, there, models, shape)() as engine:
        code, taken = there.command(*take, "--namespace", made["namespace"])
        assert code == 0, taken
        assert taken["stored"] == made["records"]
        states = there.vault_status("ssm_cold")["records"]
        first = ask(engine, receipt=True)
        name = first["transfer"]["tierkv"]["receipt"]
        wait_until(lambda: there.counters().get("receipts_written") == 1, "its receipt is written")
        code, said = there.command("verify", name)
    print({"tokens": len(text), "step": step, "own": own["cached"], "restored": first["cached"]})
    assert states > 0
    assert first["cached"] == own["cached"]
    assert first["tokens"] == own["tokens"]
    assert cold["cached"] == 0
    assert code == 0, said
    assert {group["class"] for group in said["groups"]} == {"kv", "ssm"}
    assert said["same"] == len(said["checked"])


def _layers(bundle: str) -> list[dict[str, Any]]:
    """Returns the facts that a bundle's config names."""
    manifest = _blob(bundle, json.loads(Path(bundle, "index.json").read_text())["manifests"][0])
    return list(_blob(bundle, manifest["config"])["layers"])


def _blob(bundle: str, descriptor: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(Path(bundle, "blobs", *descriptor["digest"].split(":")).read_bytes()))
