"""An engine process: builds one vLLM engine from its options, then runs functions of `inside` that the test names."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

Json = dict[str, Any]
#: Of setns(2): a network.
_CLONE_NEWNET = 0x4000_0000
_DEFAULTS: Json = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 900,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 64,
    "kv_cache_memory_bytes": 64 << 20,
}


class Host:
    """One engine and handles on its parts, None where it runs in several processes; `worker` where there are ranks."""

    def __init__(self, config: Json) -> None:
        if "space" in config:
            _enter(config["space"])
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(config.get("processes", False)))
        os.environ.update(config.get("environment", {}))
        for name, value in config.get("shim_limits", {}).items():
            from tierkv.connectors.vllm import limits  # noqa: PLC0415

            setattr(limits, name, value)
        if config.get("opaque"):
            from tierkv.connectors.vllm.pages import specs  # noqa: PLC0415

            specs._PLAIN = specs._KNOWN = ()
        late_s = config.get("late_s") or float(os.environ.get("TIERKV_TEST_LATE_S", "0"))
        if late_s:
            from harness import late  # noqa: PLC0415

            late.install(late_s)
        for side, method in config.get("broken", []):
            from harness.inside_guards import break_from_start  # noqa: PLC0415

            break_from_start(side, method)
        from vllm import LLM  # noqa: PLC0415 - after the environment

        from harness import inside_weights  # noqa: F401, PLC0415 - registers a transport of weights

        options = {**_DEFAULTS, **config.get("vllm", {}), **_parse(config.get("launch_line", []))}
        self.has_ranks = bool({"tensor_parallel_size", "pipeline_parallel_size"} & options.keys())
        if not config.get("processes"):
            options.setdefault("distributed_executor_backend", "mp" if self.has_ranks else "uni")
        self.llm = LLM(**options)
        self.core: Any = None
        self.scheduler: Any = None
        self.shim: Any = None
        self.worker: Any = None
        #: Of both halves; those of worker processes are not read.
        self.clocks: list[Any] = []
        if not config.get("processes"):
            self.core = self.llm.llm_engine.engine_core.engine_core
            self.scheduler = self.core.scheduler
            if hasattr(self.scheduler.connector, "scheduler_side"):
                self._find_halves(config.get("shim_limits", {}))

    def _find_halves(self, limits: Json) -> None:
        from lab.step_clock import clock_of  # noqa: PLC0415 - after the engine
        from vllm.distributed import kv_transfer  # noqa: PLC0415 - the same

        from harness.inside_ranks import on_every_rank, set_limits  # noqa: PLC0415

        self.shim = self.scheduler.connector.scheduler_side
        if kv_transfer.has_kv_transfer_group():
            self.worker = kv_transfer.get_kv_transfer_group().worker_side
        else:
            on_every_rank(self, set_limits, limits)
        self.clocks = [clock_of(half) for half in (self.shim, self.worker) if half is not None]


def serve(connection: socket.socket) -> int:
    """Answers JSON lines until the connection ends; returns the code of a failed start."""
    lines = connection.makefile("rb")
    first = json.loads(lines.readline())
    _redirect(first["log"])

    def answer(value: Json) -> None:
        connection.sendall(json.dumps(value).encode() + b"\n")

    try:
        host = Host(first["config"])
    except Exception as error:  # noqa: BLE001 - the test is told
        answer({"error": _describe(error)})
        return 1
    answer({"result": {"pid": os.getpid()}})
    from harness import inside  # noqa: PLC0415 - after the engine, whose settings it must not touch

    for line in lines:
        question = json.loads(line)
        try:
            result = getattr(inside, question["call"])(host, **question["arguments"])
        except Exception as error:  # noqa: BLE001 - the test is told
            answer({"error": _describe(error)})
        else:
            answer({"result": result})
    if host.scheduler is None or host.has_ranks:
        host.llm.llm_engine.engine_core.shutdown()
    # Exit while `host` is alive, because vLLM's own exit takes seconds and frees nothing more than the kernel does.
    os._exit(0)


def _parse(launch_line: list[str]) -> Json:
    """Parses a command line as `vllm serve` does; returns the options that differ from their defaults."""
    if not launch_line:
        return {}
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415 - after the environment
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given, default = vars(parser.parse_args(launch_line)), vars(parser.parse_args([]))
    return {name: value for name, value in given.items() if value != default[name]}


def _enter(space: str) -> None:
    """Moves this process to the network at a path, before it has a second thread, which would stay behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = os.open(space, os.O_RDONLY)
    if libc.setns(held, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"entering {space}")
    os.close(held)


def _redirect(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


def _describe(error: Exception) -> str:
    traceback.print_exc(file=sys.stderr)
    return "".join(traceback.format_exception(error))
