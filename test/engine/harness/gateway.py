"""Owns a gateway before engines as tests run it: its prompts, its commands and its metrics."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

from harness.engine import CALL_S
from harness.processes import ROOT, Process

if TYPE_CHECKING:
    from pathlib import Path


class Gateway:
    """`tierkv gateway` before engines, by its command line."""

    def __init__(self, folder: Path, told: str) -> None:
        """`told` names the engines, or the sidecar that knows them."""
        self._config = folder / "gateway.toml"
        self._config.write_text(
            f'[gateway]\nlisten = "127.0.0.1:0"\nsocket = "{folder / "g" / "g.sock"}"\n'
            f"tokenize_ms = 60_000\nshow_engine = true\n{told}"
        )
        argv = ["node", "bin/tierkv.js", "gateway", "--json", "--config", str(self._config)]
        self.process = Process("gateway", argv, folder / "gateway.log")
        self.url = self.process.start()["url"]

    def ask(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns the answer and its headers."""
        with urllib.request.urlopen(self._request(path, body), timeout=CALL_S) as response:
            return json.loads(response.read()), dict(response.headers)

    def text(self, path: str, body: dict[str, Any]) -> str:
        """Returns the answer as it came."""
        with urllib.request.urlopen(self._request(path, body), timeout=CALL_S) as response:
            return str(response.read().decode())

    def _request(self, path: str, body: dict[str, Any]) -> urllib.request.Request:
        return urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )

    def complete(self, model: str, text: list[int]) -> tuple[str, int, int]:
        """Returns the engine that answered, the tokens believed to be held there, and the reused ones."""
        body = {"model": model, "prompt": text, "max_tokens": 2, "ignore_eos": True}
        answer, headers = self.ask("/v1/completions", body)
        believed = int(headers["x-tierkv-hit-tokens"].split("/")[0])
        details = answer["usage"]["prompt_tokens_details"] or {}
        served = headers["x-gateway-destination-endpoint-served"]
        return served, believed, details.get("cached_tokens") or 0

    def command(self, *arguments: str) -> str:
        """Returns its output."""
        argv = ["node", "bin/tierkv.js", "gateway", *arguments, "--config", str(self._config)]
        done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=CALL_S)
        return done.stdout.decode()

    def metric(self, name: str, label: str = "") -> list[float]:
        """Returns the values of each engine, and of each tier if any, filtered by label."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=CALL_S) as response:
            lines = response.read().decode().splitlines()
        return [
            float(line.split()[-1])
            for line in lines
            if line.startswith(f"{name}{{") and label in line
        ]
