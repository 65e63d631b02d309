"""Published models in a real server: what `tierkv doctor`, with and without --engine, forecasts, and what follows."""

from __future__ import annotations

import json
import random
import subprocess
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from harness.processes import ROOT, wait_until
from harness.published import NIGHTLY_S, folder_of
from harness.server import FORKING, Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.processes import Cluster

pytestmark = pytest.mark.nightly

#: Forecasts over what is measured after them. Neither command sees an answer's way from the scheduler to the client,
#: and `doctor --engine` does not see the engine copy.
COMPUTED = (0.8, 1.2)
RESTORED = (0.7, 1.2)
RESTORED_FAR = (0.6, 1.2)
#: Attempts of a machine that others use, too; a wrong forecast is wrong in each.
ATTEMPTS = 3
#: Times that each length is measured in an attempt.
VISITS = 3
LONGEST = 4_096
BLOCK = 128
#: Lengths that both commands forecast; a slow machine computes only the first within doctor's half minute.
LENGTHS = [1_024, 2_048]
#: Prompts before the forecast, from which the sidecar learns what steps and copies take.
WARM = [256, 1_024, 2_048]
#: Tries of a prompt to be saved as a whole and restored.
TRIES = 3
STILL_S = 3.0
#: Emptied caches have the workers read all weights, which a prompt that only lost its blocks does not wait for.
READ_S = 5.0
READING_MS = 60_000
DOCTOR_S = 300.0
ROOM = ["--dtype", "bfloat16", "--block-size", str(BLOCK), "--max-model-len", str(LONGEST)]
ROOM += ["--num-gpu-blocks-override", "600"]


def is_within(name: str, ratio: float) -> bool:
    restored = RESTORED_FAR if "--engine" in name else RESTORED
    least, most = restored if "restored" in name else COMPUTED
    return least <= ratio <= most


class Bench:
    """A server whose prompts are timed, computed and restored."""

    def __init__(self, server: Server, cluster: Cluster) -> None:
        self.server = server
        self.cluster = cluster
        self._draw = random.Random(48)

    def first_token_ms(self, prompt: list[int]) -> float:
        """Milliseconds of a request for one token."""
        body = json.dumps({"model": self.server.model, "prompt": prompt, "max_tokens": 1}).encode()
        begun = time.perf_counter()
        self.server.post("/v1/completions", body)
        return (time.perf_counter() - begun) * 1e3

    def visit(self, tokens: int) -> tuple[float, float]:
        """Milliseconds of a new prompt, and of the same when only the vault holds it."""
        for _ in range(TRIES):
            prompt = self._draw.choices(range(300, 20_000), k=tokens)
            saved = self.cluster.saved()
            computed = self.first_token_ms(prompt)
            self.cluster.wait_saved(saved + (tokens - 1) // BLOCK)
            self.wait_still()
            wait_until(self.has_forgotten, "the engine's own cache is empty")
            time.sleep(READ_S)
            before = self.restores
            restored = self.first_token_ms(prompt)
            self.cluster.wait_idle()
            print(self.account())
            if self.restores == before + 1:
                return computed, restored
        dropped = {
            name: n for name, n in self.cluster.counters().items() if "dropped" in name and n
        }
        said = json.dumps([self.account(), dropped])
        raise AssertionError(f"{tokens} tokens: computed again in {TRIES} tries: {said}")

    def has_forgotten(self) -> bool:
        """Empties the engine's own cache; False while it still holds blocks that are being saved."""
        return bool(json.loads(self.server.post("/reset_prefix_cache"))["success"])

    def account(self) -> dict[str, Any]:
        """The latest request's account."""
        _, explained = self.cluster.command("explain")
        return dict(explained["requests"][-1])

    def wait_still(self) -> None:
        """Waits until no block was saved for a while: those of other groups follow."""
        before, since = -1, time.monotonic()
        while time.monotonic() - since < STILL_S:
            self.cluster.wait_idle()
            if (saved := self.cluster.saved()) != before:
                before, since = saved, time.monotonic()

    @property
    def restores(self) -> int:
        """Restores that the sidecar has counted."""
        return int(self.cluster.status()["ledger"]["restores"])

    def doctor(self, *arguments: str) -> dict[str, Any]:
        """The command's result. Its exit code says only whether restores help."""
        argv = ["node", "bin/tierkv.js", "doctor", *arguments, "--json"]
        argv += ["--config", str(self.cluster.config_path)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=DOCTOR_S, check=False)
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def ratios(self, model: Path) -> dict[str, float]:
        """What both commands forecast, over the median of what was measured after them."""
        far = self.doctor("--engine", self.server.url, "--model", str(model))["prompts"]
        (near,) = self.doctor()["engines"]
        *shorter, longest = (one["isBeyond"] for one in near["prompts"])
        assert longest
        assert not any(shorter)
        found: dict[str, float] = {}
        for tokens in LENGTHS:
            (said,) = (one for one in near["prompts"] if one["tokens"] == tokens)
            told = next((one for one in far if one["tokens"] == tokens), None)
            if told is None and tokens != LENGTHS[0]:
                continue
            assert told is not None, f"{far}"
            visits = [self.visit(tokens) for _ in range(VISITS)]
            computed, restored = (median(column) for column in zip(*visits, strict=True))
            found |= {
                f"doctor: computed {tokens}": said["computeMs"] / computed,
                f"doctor: restored {tokens}": said["restoreMs"] / restored,
                f"doctor --engine: computed {tokens}": told["ms"] / computed,
                f"doctor --engine: restored {tokens}": told["restoreMs"] / restored,
            }
            print(f"{tokens} tokens: computed {computed:.0f} ms, restored {restored:.0f} ms")
        print({name: round(ratio, 2) for name, ratio in found.items()})
        return found


@pytest.mark.parametrize("name", ["gemma3-270m", "qwen25-0.5b"])
def test_forecasts_agree_with_what_is_measured_after_them(
    name: str, new_cluster: Callable[..., Cluster]
) -> None:
    model = folder_of(name, NIGHTLY_S)
    cluster = new_cluster(
        kv="raw", vault_bytes="2GiB", arena_bytes="1GiB", wait_ms=READING_MS, stall_ms=READING_MS
    )
    line = ["vllm", "serve", str(model), "--enable-prefix-caching"]
    line += ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    environment = {"VLLM_SERVER_DEV_MODE": "1", **FORKING}
    log = cluster.folder / "server.log"
    with Server(line, str(model), log, environment, more=ROOM) as server:
        cluster.wait_restoring()
        bench = Bench(server, cluster)
        for tokens in WARM:
            bench.visit(tokens)
        for _ in range(ATTEMPTS):
            ratios = bench.ratios(model)
            wrong = {key: one for key, one in ratios.items() if not is_within(key, one)}
            if not wrong:
                break
        assert not wrong
