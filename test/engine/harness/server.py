"""A printed `vllm serve` line, run as a process: started, asked over HTTP, ended with all its children."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from harness.engine import CALL_S, END_S, ENVIRONMENT
from harness.processes import ROOT, free_port, wait_until
from harness.releases import MAIN, python_of

if TYPE_CHECKING:
    from pathlib import Path

FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINE = "vllm serve"
#: Seconds for a start, because a server imports vLLM twice and a busy machine takes minutes for each.
START_S = 900.0
#: Options for a small model on a busy machine, beside the printed ones.
_SMALL = [
    *("--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"),
    *("--max-model-len", "900", "--max-num-seqs", "4", "--num-gpu-blocks-override", "32"),
]


def launch_lines(page: Path) -> list[list[str]]:
    """Returns the words of each `vllm serve` line of a page, as a shell splits them."""
    blocks = (block.replace("\\\n", " ") for block in FENCED.findall(page.read_text()))
    return [shlex.split(block[block.index(_LINE) :]) for block in blocks if _LINE in block]


class Server:
    """One server; in the launch line `line`, `model` replaces the model's name."""

    def __init__(
        self,
        line: list[str],
        model: str,
        log: Path,
        environment: dict[str, str],
        python: str = python_of(MAIN),
    ) -> None:
        assert line[:2] == _LINE.split()
        # The module is run, because the CPU build's package has another name and its `vllm` command finds no version.
        module = [python, "-m", "vllm.entrypoints.openai.api_server"]
        self.port = free_port()
        self._model = model
        self._log = log
        self._argv = [*module, "--model", model, *line[3:], *_SMALL, "--port", str(self.port)]
        self._environment = {
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": str(ROOT / "python-shim"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            **environment,
        }

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                self._argv,
                cwd=self._log.parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(self._is_healthy, f"the server is up ({self._log})", START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def complete(self, prompt: list[int], **headers: str) -> dict[str, Any]:
        """Returns the server's answer to a prompt of token ids."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
        return dict(json.loads(self.post("/v1/completions", json.dumps(body).encode(), **headers)))

    def post(self, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Returns the server's answer to a GET of this path."""
        headers = {"content-type": "application/json", **headers}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=CALL_S) as response:
            return bytes(response.read())

    def _is_healthy(self) -> bool:
        assert self._child.poll() is None, f"the server ended: {self._log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=CALL_S):
                return True
        except OSError:
            return False

    def _end(self) -> None:
        """Ends it as an operator does; leftovers of its session are killed after a while."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(END_S)
