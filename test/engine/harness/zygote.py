"""Imports vLLM once and forks an engine process for each connection, so that a new engine imports nothing."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys

from harness import interpreted
from harness.releases import IS_V2

#: Modules that an engine loads at its start besides `vllm` itself.
MODULES = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.structured_output",
    "tierkv.connectors.vllm.connector",
    "harness.engine_main",
)


def main() -> None:
    """Serves until standard input ends; the engines end with their connections."""
    path = sys.argv[1]
    ready_line = os.dup(1)
    os.dup2(2, 1)  # 0.28 logs to standard output
    if IS_V2:
        interpreted.install()
    for name in MODULES:
        importlib.import_module(name)
    # Inspects model classes in this process, because vLLM's new process protects CUDA, which is absent here.
    registry = importlib.import_module("vllm.model_executor.models.registry")
    setattr(registry, "_run_in_subprocess", lambda look: look())  # noqa: B010 - mypy reads vLLM's types
    gc.freeze()  # an engine collects five times on its way up, and would walk and copy what it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended engines are reaped by the kernel
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen(8)
    os.write(ready_line, b'{"event": "ready"}\n')
    os.close(ready_line)
    while True:
        ready, _, _ = select.select([server, sys.stdin], [], [])
        if sys.stdin in ready:
            os.unlink(path)
            return
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            _become_engine(connection)
        connection.close()


def _become_engine(connection: socket.socket) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        from harness import engine_main  # noqa: PLC0415 - loaded before the fork

        code = engine_main.serve(connection)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
