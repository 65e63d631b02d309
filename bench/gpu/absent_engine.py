"""Owns the stand-in for a missing vLLM, which the shim's copies import but never call."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


class _Nothing(type):
    """A class with any attribute, each another class like it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Absent(ModuleType):
    """A module from which anything can be imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        is_vllm = name == "vllm" or name.startswith("vllm.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_vllm else None

    def create_module(self, spec: Any) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


def install() -> None:
    """Shadow an installed vLLM, too, because the kit measures copies and needs no engine to start."""
    sys.meta_path.insert(0, _Finder())
