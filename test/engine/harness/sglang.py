"""SGLang's own server and pools as separate processes, in an environment without vLLM, on a CPU."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from lab.checkpoint import Spec

from harness.models import prompt
from harness.processes import ROOT, WAIT_S, Process, free_port, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from harness.processes import Json

HERE = ROOT / "test" / "engine" / "harness"
#: Interpreter with SGLang and tierkv; by default that of set-up.
PYTHON_VARIABLE = "TIERKV_TEST_SGLANG"
PAGE = 16
#: Tokens of the device's cache, and so of the longest prompt.
TOKENS_MAX = 4096
#: SGLang imports for a long time, and longer beside other work.
READY_S = 420.0
#: Longest answer of a request; a blocked one ends far later.
ANSWER_S = 120.0

LLAMA = Spec(layers=4, hidden=256, heads=8, kv_heads=4, head_dim=32, vocab=2048)
#: Latent attention (MLA) that SGLang computes with torch alone.
LATENT = Spec(kind="minicpm3", layers=4, hidden=256, heads=8, kv_heads=8, head_dim=32, vocab=2048)
TOKENS = 1500
#: SGLang computes at least one token of a prompt.
FULL_PAGES = (TOKENS - 1) // PAGE
#: Least share of the full pages that a restore brings.
LEAST = 0.95


def text(seed: int, tokens: int = TOKENS) -> list[int]:
    """Return random tokens without the model's own marks."""
    return [3 + token % (LLAMA.vocab - 3) for token in prompt(seed, tokens, LLAMA.vocab)]


def is_restored(answer: Json, own: Json, pages: int = FULL_PAGES) -> None:
    """Expect the same answer as `own`, with nearly all of the prompt's full pages from the vault."""
    assert answer["restored"] >= LEAST * pages * PAGE
    is_same(answer, own)


def is_same(answer: Json, own: Json) -> None:
    """Expect the same tokens with the same logprobs."""
    assert (answer["ids"], answer["logprobs"]) == (own["ids"], own["logprobs"])


def storage(config_path: Path, page: int = PAGE, **more: Any) -> tuple[str, ...]:
    """Return the options that make tierKV HiCache's storage; `more` are keys of its configuration."""
    extra = {
        "backend_name": "tierkv",
        "module_path": "tierkv.sglang.storage",
        "class_name": "TierKVStorage",
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        "prefetch_threshold": page,
        "config_path": str(config_path),
        **more,
    }
    return _storage("dynamic", extra)


def file_storage(folder: Path, page: int = PAGE) -> tuple[str, ...]:
    """Return the options for SGLang's own storage in files."""
    return _storage("file", {"file_storage_path": str(folder), "prefetch_threshold": page})


def _storage(kind: str, extra: Json) -> tuple[str, ...]:
    text = json.dumps(extra)
    return (
        "--hicache-storage-backend",
        kind,
        "--hicache-storage-backend-extra-config",
        text,
    )


def sglang_python() -> str:
    """Return the interpreter with SGLang. Raises FileNotFoundError naming what makes it."""
    python = os.environ.get(PYTHON_VARIABLE) or str(ROOT / ".venv-sglang" / "bin" / "python")
    if not os.path.exists(python):
        raise FileNotFoundError(f"{python}: run `node .ci/setup.js --sglang`")
    return python


def environment() -> dict[str, str]:
    """Return the environment of SGLang's processes: the CPU engine with stand-ins for kernels that need a GPU."""
    paths = [str(HERE / "sglang_cpu"), str(ROOT / "python-shim")]
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {
        **quiet,
        "PYTHONPATH": os.pathsep.join(paths),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        "TOKENIZERS_PARALLELISM": "false",
    }


class SglangServer(Process):
    """SGLang's HTTP server with HiCache, as its users start it.

    `kept`: options of HiCache's storage. `arguments` are added to its command line, and `variables` to its
    environment.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        model: str,
        kept: tuple[str, ...],
        *,
        layout: str = "page_first_direct",
        io: str = "direct",
        policy: str = "wait_complete",
        page: int = PAGE,
        tokens_max: int = TOKENS_MAX,
        arguments: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self._variables = variables or {}
        argv = [sglang_python(), "-m", "sglang.launch_server", "--model-path", model]
        argv += ["--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"]
        argv += ["--attention-backend", "torch_native", "--skip-tokenizer-init"]
        argv += ["--disable-cuda-graph", "--disable-overlap-schedule", "--enable-cache-report"]
        argv += ["--max-total-tokens", str(tokens_max), "--context-length", str(tokens_max)]
        argv += ["--mem-fraction-static", "0.1", "--page-size", str(page)]
        argv += ["--enable-hierarchical-cache", "--hicache-ratio", "2"]
        argv += ["--hicache-mem-layout", layout, "--hicache-io-backend", io]
        argv += ["--hicache-storage-prefetch-policy", policy, *kept, *arguments]
        super().__init__(name, argv, folder / f"{name}.log")

    def start(self, timeout_s: float = READY_S) -> Json:
        """Start it, and wait until it has answered its own first request."""
        self._spawn()

        def is_ready() -> bool:
            text = self.log.read_text(errors="replace")
            assert self.is_running, f"{self.name} ended: {text[-3000:]}"
            return "ready to roll" in text

        wait_until(is_ready, f"{self.name} answers", timeout_s)
        return {}

    def refuses(self, timeout_s: float = READY_S) -> str:
        """Start it, and return its log once it has given up."""
        self._spawn()
        wait_until(lambda: not self.is_running, f"{self.name} ends", timeout_s)
        return self.log.read_text(errors="replace")

    def _spawn(self) -> None:
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), **self._variables},
                start_new_session=True,
            )

    def post(self, path: str, body: Json | None = None) -> tuple[int, str]:
        """Return status and body of an answer."""
        address = f"http://127.0.0.1:{self.port}{path}"
        kind = {"content-type": "application/json"}
        request = Request(address, json.dumps(body or {}).encode(), kind, method="POST")
        try:
            with urlopen(request, timeout=ANSWER_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def generate(self, text: list[int], tokens: int = 8, **more: Any) -> Json:
        """Answer a prompt greedily: `ids`, their `logprobs`, and the prompt's tokens by where they came from."""
        body = {
            "input_ids": text,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
            "return_logprob": True,
            **more,
        }
        status, answer = self.post("/generate", body)
        assert status == 200, answer
        found = json.loads(answer)
        about = found["meta_info"]
        details = about.get("cached_tokens_details") or {}
        return {
            "ids": found["output_ids"],
            "logprobs": [row[0] for row in about["output_token_logprobs"]],
            "cached": about["cached_tokens"],
            "host": details.get("host", 0),
            "restored": details.get("storage", 0),
        }

    def own_hit(self, text: list[int], **more: Any) -> Json:
        """Answer a prompt twice; return the answer from the device's cache, computed in the shape of a restored one."""
        self.generate(text, **more)
        answer = self.generate(text, **more)
        assert answer["cached"] > answer["restored"] == 0
        return answer

    def flush(self) -> None:
        """Empty the caches of device and host; SGLang refuses while anything is under way."""
        wait_until(lambda: self.post("/flush_cache")[0] == 200, "the caches are flushed", WAIT_S)

    def signal_all(self, number: int) -> None:
        """Send a signal to it and to the processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)

    def end(self) -> None:
        """End it with the processes that it has started."""
        super().end()
        self.signal_all(signal.SIGKILL)


class SglangPools(Process):
    """Real pools of SGLang with our storage, without an engine: `run` does what an engine's threads would do."""

    def __init__(self, folder: Path, name: str) -> None:
        argv = [sglang_python(), "-P", str(HERE / "inside_sglang.py")]
        super().__init__(name, argv, folder / f"{name}.log")

    def start(self, timeout_s: float = READY_S) -> Json:
        """Start it; return its ready line."""
        out = self.log.with_suffix(".out")
        with self.log.open("ab") as log, out.open("wb") as stdout:
            self._child = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=stdout, stderr=log, env=environment()
            )
        lines = wait_until(lambda: self._lines(out, 1), f"{self.name} is ready", timeout_s)
        ready: Json = json.loads(lines[0])
        return ready

    def run(self, what: str, **options: Any) -> Any:
        """Send a command."""
        return self.ask(json.dumps([what, options]))
