"""Programs with mlx-lm, or EXO's cache, as separate processes in interpreters without vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from harness.processes import READY_S, ROOT, WAIT_S, Process, free_port, wait_until

if TYPE_CHECKING:
    from harness.processes import Cluster, Json

HERE = Path(__file__).parent
#: Path of an EXO checkout whose `.venv` has mlx, mlx-lm and EXO's imports; this repository has none.
EXO_VARIABLE = "TIERKV_TEST_EXO"


def mlx_python() -> str:
    """Return the interpreter with mlx-lm. Raises FileNotFoundError naming what makes it."""
    python = ROOT / ".venv-mlx" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: run `node .ci/setup.js --every-release`")
    return str(python)


class MlxProgram(Process):
    """One process with one model; `run` answers a prompt and keeps it."""

    def __init__(
        self, folder: Path, name: str, shape: str, cluster: Cluster, seed: int = 1
    ) -> None:
        order = {"shape": shape, "seed": seed, "config": str(cluster.config_path)}
        given = [str(ROOT / "python-shim"), str(HERE / "inside_mlx.py"), json.dumps(order)]
        super().__init__(
            name, [mlx_python(), "-I", "-c", _AS_SCRIPT, *given], folder / f"{name}.log"
        )

    def run(self, seeds: list[int], tokens: int, **options: Any) -> Json:
        """Answer a prompt of chunks; return the restored tokens, the logits and the tokens."""
        return self.order("run", seeds=seeds, tokens=tokens, **options)

    def order(self, what: str, **options: Any) -> Json:
        """Send a command."""
        return self.ask(json.dumps([what, options]))


#: Runs without the folder of the other tests on its path.
_AS_SCRIPT = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"


def exo_checkout() -> Path | None:
    """Return EXO's source folder; None where none was given."""
    named = os.environ.get(EXO_VARIABLE)
    return Path(named) if named else None


class ExoProgram(Process):
    """EXO's cache in its own environment, where only the `.pth` file loads tierKV."""

    def __init__(self, folder: Path, name: str, checkout: Path, seed: int, tokens: int) -> None:
        python = checkout / ".venv" / "bin" / "python"
        script = [str(HERE / "inside_exo.py"), str(checkout), str(seed), str(tokens)]
        super().__init__(name, [str(python), "-I", *script], folder / f"{name}.log")


class MlxServer(Process):
    """mlx-lm's own server with our prompt cache, as its users start it."""

    def __init__(self, folder: Path, name: str, model: str) -> None:
        self.port = free_port()
        given = ["--model", model, "--host", "127.0.0.1", "--port", str(self.port)]
        code = [_AS_MODULE, str(ROOT / "python-shim"), *given]
        super().__init__(name, [mlx_python(), "-I", "-c", *code], folder / f"{name}.log")

    def start(self, timeout_s: float = READY_S) -> Json:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

        def is_healthy() -> bool:
            assert self.is_running, self.log.read_text()[-2000:]
            with contextlib.suppress(OSError):
                return bool(self._get("/health"))
            return False

        wait_until(is_healthy, f"{self.name} answers", timeout_s)
        return {}

    def _get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return bytes(answer.read())

    def complete(self, prompt: str) -> Json:
        """Answer a prompt greedily; return the text, and the tokens that were not computed."""
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0.0}
        address = f"http://127.0.0.1:{self.port}/v1/completions"
        kind = {"content-type": "application/json"}
        request = Request(address, json.dumps(body).encode(), kind)
        with urlopen(request, timeout=WAIT_S) as answer:
            found = json.loads(answer.read())
        cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        tokens = found["usage"]["prompt_tokens"]
        return {"text": found["choices"][0]["text"], "cached": cached, "tokens": tokens}


_AS_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module('tierkv.mlx.server', run_name='__main__', alter_sys=True)"
)
