"""Owns vLLM's model runner V2 on a CPU: its Triton kernels run in Triton's own interpreter, on numpy."""

from __future__ import annotations

import importlib

#: Triton reads the first when a kernel is defined, vLLM the second when an engine is configured.
ENVIRONMENT = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


class _Backend:
    driver = _Driver
    compiler = None


def install() -> None:
    """Name a CPU backend, which vLLM asks for before it lets V2 run; call this before vLLM is imported.

    Nothing is compiled for it, because the interpreter takes every launch.
    """
    importlib.import_module("triton.backends").backends["cpu"] = _Backend
