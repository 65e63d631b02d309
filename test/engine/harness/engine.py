"""The test's end of an engine process: starts engines from the zygote and calls what runs inside them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Self

from harness import interpreted
from harness.processes import ROOT, Process, wait_until
from harness.releases import IS_V2, NEWEST, python_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

Json = dict[str, Any]
IMPORT_S = 600.0
CALL_S = 1200.0 if IS_V2 else 300.0
END_S = 60.0
#: Limits of the shim for tests. A sidecar counts as hung only after a long silence, because a busy machine must
#: not turn a restore into a miss; tests of that rule set the shim's own value. Fresh engines request AMX at once, so
#: that computed values are equal with and without it.
PATIENT = {"SILENCE_MAX_S": 60.0, "NAMING_START_WAIT_S": 60.0, "AMX_FIRST_TOKENS": 1}
#: Equal binding for all engines of a comparison, with or without a connector; a parallel run gets another processor.
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": os.environ.get("TIERKV_TEST_CPU", "0"),
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "PYTHONHASHSEED": "0",  # 0.28 seeds its block hashes from it
    # Set as vLLM does for other processes' workers, because two threads on one processor spin for each other.
    "OMP_NUM_THREADS": "1",
    # Off, because for one function of the sampler each engine would hash torch's sources and import 70 modules.
    "TORCHDYNAMO_DISABLE": "1",
    **(interpreted.ENVIRONMENT if IS_V2 else {}),
}
_NUMBERS = itertools.count(1)


class EngineError(Exception):
    """An exception in an engine process."""


class Engines:
    """The zygote of one vLLM release, and every engine forked from it."""

    #: Command prefix of the zygote.
    under: Sequence[str] = ()

    def __init__(self, folder: Path, release: str = NEWEST, shim: Path | None = None) -> None:
        """`shim`: folder of the package `tierkv` in place of the checkout's."""
        self.folder = folder
        self.release = release
        self.path = str(folder / f"zygote-{release}.sock")
        # `env` keeps our settings out of the test's own process; the folder of `harness` is the module path.
        places = [ROOT / "test/engine", *([] if shim is None else [shim]), ROOT / "python-shim"]
        paths = os.pathsep.join(map(str, places))
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        settings.append(f"XDG_STATE_HOME={folder / 'state'}")
        argv = ["env", f"PYTHONPATH={paths}", *settings, python_of(release), "-m", "harness.zygote"]
        self._zygote = Process(
            "zygote", [*self.under, *argv, self.path], folder / f"zygote-{release}.log"
        )
        self._engines: list[Engine] = []

    @property
    def pid(self) -> int:
        return self._zygote.child.pid

    @property
    def is_running(self) -> bool:
        return self._zygote.is_running

    def start(self, **config: Any) -> Engine:
        """Starts an engine; `engine_main.Host` describes `config`. Raises EngineError if vLLM does."""
        if not self._zygote.is_running:
            self._zygote.start(IMPORT_S)
        config["shim_limits"] = {**PATIENT, **config.get("shim_limits", {})}
        engine = Engine(self.path, self.folder / f"engine-{next(_NUMBERS)}.log", config)
        self._engines.append(engine)
        engine.greet()
        return engine

    def end_all(self) -> None:
        """Ends every running engine."""
        while self._engines:
            self._engines.pop().end()

    def close(self) -> None:
        self.end_all()
        if self._zygote.is_running:
            assert self._zygote.child.stdin is not None
            self._zygote.child.stdin.close()
            self._zygote.child.wait(END_S)


class Engine:
    """One vLLM engine in a process of its own."""

    def __init__(self, path: str, log: Path, config: Json) -> None:
        self.log = log
        self.pid = 0
        self._config = config
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._link.connect(path)
        self._lines = self._link.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.end()

    def greet(self) -> None:
        """Waits until the engine is up."""
        self.log.touch()
        self.pid = self._exchange({"log": str(self.log), "config": self._config}, CALL_S)["pid"]

    def call(self, name: str, timeout_s: float = CALL_S, **arguments: Any) -> Any:
        """Runs `inside.<name>(host, **arguments)` in the engine's process and returns its result."""
        return self._exchange({"call": name, "arguments": arguments}, timeout_s)

    def ask(self, text: list[int], **options: Any) -> Json:
        """The greedy answer to one prompt; see `inside.generate`."""
        (answer,) = self.call("generate", prompts=[text], **options)
        return dict(answer)

    def empty(self) -> None:
        """Empties the engine's own cache and overwrites all pages: what was not copied cannot pass for restored."""
        assert self.call("reset")
        self.call("spoil")

    def wait_up(self) -> Self:
        """Waits until the shim may restore; only for an engine in one process."""
        self.call("go_on_until", moment="up")
        return self

    def _exchange(self, question: Json, timeout_s: float) -> Any:
        self._link.settimeout(timeout_s)
        self._link.sendall(json.dumps(question).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise EngineError(f"the engine died: {self.tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{answer['error']}\n{self.tail()}")
        return answer["result"]

    def tail(self) -> str:
        return f"{self.log}:\n" + self.log.read_text()[-3000:]

    def end(self) -> None:
        """Closes the connection, which ends the process, and waits; a busy process is killed with its workers."""
        self._lines.close()
        self._link.close()
        if self.pid == 0:
            return
        try:
            wait_until(lambda: not _is_alive(self.pid), f"engine {self.pid} ends", END_S)
        except AssertionError:
            os.killpg(self.pid, signal.SIGKILL)
            raise


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
