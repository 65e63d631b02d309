"""Owns the measuring of a new engine process: one `vllm serve`, asked from the moment its port answers.

Prints one JSON line: seconds from the start until it answers, and of each request when it was sent after that, its
seconds to the first token, and the tokens found in caches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from typing import Any

from never_slower import status_of

VOCAB = 512
#: Prompts without a whole block, after which vLLM's own code is warm.
SHORT_TOKENS = 64
START_S = 900.0
ANSWER_S = 300.0
SAVED_S = 120.0
END_S = 30.0
POLL_S = 0.005


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Server:
    """One server, of its own session; ended with all its children."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        self._model = options.model
        # The module is run, because the CPU build's package has another name and its `vllm` command finds no version.
        argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", options.model, "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--dtype", "bfloat16", "--enforce-eager"]
        argv += ["--max-model-len", "4096", "--kv-cache-memory-bytes", str(options.kv_bytes)]
        argv += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
        if options.config is not None:
            transfer = {
                "kv_connector": "TierKVConnector",
                "kv_connector_module_path": "tierkv.connectors.vllm.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"config_path": options.config},
            }
            argv += ["--kv-transfer-config", json.dumps(transfer)]
        began = time.perf_counter()
        self._child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )
        while not self._is_up():
            if self._child.poll() is not None or time.perf_counter() - began > START_S:
                self.end()
                raise RuntimeError("the server did not come up")
            time.sleep(POLL_S)
        self.up = time.perf_counter()
        self.start_s = self.up - began

    def _is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=ANSWER_S) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def ask(self, prompt: list[int]) -> dict[str, float]:
        """Return when a prompt was sent after the start, the seconds to its answer of one token, and cached tokens."""
        body: dict[str, Any] = {"model": self._model, "prompt": prompt, "max_tokens": 1}
        body |= {"temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self._url}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        sent = time.perf_counter()
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            usage = json.loads(response.read())["usage"]
        seconds = time.perf_counter() - sent
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or 0
        return {"at": sent - self.up, "seconds": seconds, "cached": cached}

    def end(self) -> None:
        """End it as an operator does; leftovers are killed after a while."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(END_S)


def until(holds: Any, seconds: float, what: str) -> None:
    """Wait for a condition; raises RuntimeError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def is_served(path: str) -> bool:
    """Tell whether a sidecar listens at a path."""
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(path) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--config")
    parser.add_argument("--socket")
    for name in ("kv-bytes", "tokens", "prompts", "later", "shorts", "fill"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    draw = random.Random(1)
    prompts = [draw.choices(range(VOCAB), k=options.tokens) for _ in range(options.prompts)]
    shorts = [draw.choices(range(VOCAB), k=SHORT_TOKENS) for _ in range(options.shorts)]
    server = Server(options)
    try:
        for short in shorts:
            server.ask(short)
        asked = []
        hits = 0
        for prompt in prompts:
            answer = server.ask(prompt)
            asked.append(answer)
            hits += answer["cached"] > 0 or options.config is None
            if not options.fill and hits > options.later:
                break
        if options.fill:
            until(lambda: is_saved(options), SAVED_S, "all is saved")
    finally:
        server.end()
    if options.socket is not None:
        until(lambda: not is_served(options.socket), END_S, "the sidecar has ended")
    sys.stdout.write(json.dumps({"start": server.start_s, "asked": asked}) + "\n")


def is_saved(options: argparse.Namespace) -> bool:
    """Tell whether every whole block of all prompts lies in the vault."""
    status = status_of(options.socket)
    (engine,) = status["engines"]
    (group,) = engine["groups"]
    blocks = options.prompts * (options.tokens // group["tokens"])
    counters = status["counters"]
    return bool(counters["blocks_saved"] >= blocks and status["saves"]["queuedBlocks"] == 0)


if __name__ == "__main__":
    main()
