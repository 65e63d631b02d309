"""A printed `vllm serve` line, run as a process: started, asked over HTTP, ended with all its children."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness.engine import CALL_S, END_S, ENVIRONMENT
from harness.processes import ROOT, free_port, wait_until
from harness.releases import MAIN, python_of

if TYPE_CHECKING:
    from collections.abc import Sequence

FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINE = "vllm serve"
#: Seconds for a start, because a server imports vLLM twice and a busy machine takes minutes for each.
START_S = 900.0
#: Environment of a server whose children are forked; spawned ones import vLLM again, each for a minute at worst.
FORKING = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
#: Options for a small model on a busy machine, beside the printed ones.
_SMALL = [
    *("--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"),
    *("--max-model-len", "900", "--max-num-seqs", "4", "--num-gpu-blocks-override", "32"),
]


def launch_lines(page: Path) -> list[list[str]]:
    """Returns the words of each `vllm serve` line of a page, as a shell splits them."""
    blocks = (block.replace("\\\n", " ") for block in FENCED.findall(page.read_text()))
    return [shlex.split(block[block.index(_LINE) :]) for block in blocks if _LINE in block]


class _OnSocket(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CALL_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CALL_S)
        self.sock.connect(str(self._path))


class Server:
    """One server; in the launch line `line`, `model` replaces its model. `on`: a Unix socket in place of a port.

    `more`: options that win over those for a small model.
    """

    def __init__(
        self,
        line: list[str],
        model: str,
        log: Path,
        environment: dict[str, str],
        python: str = python_of(MAIN),
        on: Path | None = None,
        more: Sequence[str] = (),
    ) -> None:
        assert line[:2] == _LINE.split()
        # The module is run, because the CPU build's package has another name and its `vllm` command finds no version.
        module = [python, "-m", "vllm.entrypoints.openai.api_server"]
        self.port = free_port()
        self.model = model
        self._log = log
        self._on = on
        place = ["--port", str(self.port)] if on is None else ["--uds", str(on)]
        self._argv = [*module, "--model", model, *line[3:], *_SMALL, *more, *place]
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
        body = {"model": self.model, "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
        body["temperature"] = 0
        return dict(json.loads(self.post("/v1/completions", json.dumps(body).encode(), **headers)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Returns the server's answer to a POST to this path."""
        headers = {"content-type": "application/json", **headers}
        request = urllib.request.Request(f"{self.url}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=CALL_S) as response:
            return bytes(response.read())

    def read(self, path: str) -> bytes:
        """Returns the server's answer to a GET of this path."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=CALL_S) as response:
            return bytes(response.read())

    def metric(self, name: str, label: str = "") -> float:
        """Returns the sum of a metric's values, filtered by label."""
        lines = self.read("/metrics").decode().splitlines()
        found = [line for line in lines if line.startswith(f"{name}{{") and label in line]
        return sum(float(line.split()[-1]) for line in found)

    def kill(self) -> None:
        """Ends the server and its core at once."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(END_S)

    def stop(self) -> int:
        """Ends it by SIGTERM; returns its exit code once it has ended by itself."""
        self._child.terminate()
        return self._child.wait(CALL_S)

    @property
    def core(self) -> int:
        """Process id of the engine core, a child of the server."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self._child.pid and b"EngineCore" in (path / "cmdline").read_bytes():
                    return int(path.name)
        raise LookupError(f"no engine core below {self._child.pid}")

    def _is_healthy(self) -> bool:
        assert self._child.poll() is None, f"the server ended: {self._log.read_text()[-3000:]}"
        try:
            if self._on is not None:
                connection = _OnSocket(self._on)
                connection.request("GET", "/health")
                return connection.getresponse().status == http.client.OK
            self.read("/health")
        except OSError:
            return False
        return True

    def _end(self) -> None:
        """Ends it as an operator does; leftovers of its session are killed after a while."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(END_S)
        if self._on is not None:
            self._on.unlink(missing_ok=True)
