"""Identifies a model in memory: every byte of its arrays, its modules' settings, and their code."""

import enum
import hashlib
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from tierkv.connectors.vllm import limits

#: Attributes without effect on the computed values.
_WITHOUT_EFFECT: Final = ("_no_grad", "_training")


class UnnameableError(Exception):
    """A part of the model has no form that two processes would agree on; the text says which."""


class ModelForm:
    """Walks a model once: `arrays` by place, `text` of all else, `sources` of its code."""

    def __init__(self, model: nn.Module) -> None:
        """Raises UnnameableError naming the part."""
        self.arrays: list[tuple[str, mx.array]] = []
        self.sources: set[str] = set()
        self._depth = 0
        self._walked: set[int] = set()
        self._owners: list[tuple[str, Any]] = []
        form = self._of(model, type(model).__name__)
        for place, owner in self._owners:
            if id(owner) not in self._walked:
                raise UnnameableError(
                    f"{place}: a method of an object that is no part of the model"
                )
        self.text = json.dumps(form, sort_keys=True)

    @property
    def total_bytes(self) -> int:
        return sum(array.nbytes for _, array in self.arrays)

    def digest(self, heard: Callable[[int], None]) -> str:
        """Give the SHA-256 of all; `heard` is called with the bytes read so far."""
        digest = hashlib.sha256(self.text.encode())
        # Sorted by content, because two machines may have different paths.
        codes = [hashlib.sha256(Path(path).read_bytes()).digest() for path in self.sources]
        digest.update(b"".join(sorted(codes)))
        done = 0
        for place, array in self.arrays:
            digest.update(f"{place}\0{array.shape}\0{array.dtype}\0".encode())
            flat = memoryview(array.reshape(-1).view(mx.uint8)) if array.size else memoryview(b"")
            for start in range(0, len(flat), limits.NAMING_BUFFER_BYTES):
                digest.update(flat[start : start + limits.NAMING_BUFFER_BYTES])
                heard(done + min(len(flat), start + limits.NAMING_BUFFER_BYTES))
            done += array.nbytes
        return digest.hexdigest()

    def _of(self, value: Any, place: str) -> Any:
        self._depth += 1
        try:
            if self._depth > limits.MLX_MODULE_DEPTH_MAX:
                raise UnnameableError(f"{place} is nested too deep")
            return self._form(value, place)
        finally:
            self._depth -= 1

    def _form(self, value: Any, place: str) -> Any:
        plain = self._plain(value, place)
        if plain is not None:
            return plain
        if isinstance(value, nn.Module):
            self._walked.add(id(value))
            return ["module", self._name(type(value), place), self._members(value, place)]
        if isinstance(value, Mapping):
            items = [[str(key), self._of(item, f"{place}.{key}")] for key, item in value.items()]
            return ["map", sorted(items, key=json.dumps)]
        if isinstance(value, list | tuple):
            return ["list", [self._of(item, f"{place}.{at}") for at, item in enumerate(value)]]
        return self._other(value, place)

    def _plain(self, value: Any, place: str) -> Any:
        """Give the form of a value without parts; None for all others."""
        if value is None or isinstance(value, bool | int | str):
            return [type(value).__name__, str(value)]
        if isinstance(value, float):
            return ["float", value.hex()]
        if isinstance(value, mx.array):
            self.arrays.append((place, value))
            return ["array", list(value.shape), str(value.dtype)]
        if isinstance(value, mx.Dtype | mx.Device | enum.Enum):
            return [type(value).__name__, str(value)]
        return None

    def _other(self, value: Any, place: str) -> Any:
        if isinstance(value, set | frozenset):
            forms = [self._of(item, place) for item in value]
            return ["set", sorted(forms, key=json.dumps)]
        if isinstance(value, partial):
            parts = [value.func, list(value.args), dict(value.keywords)]
            return ["partial", self._of(parts, place)]
        if is_dataclass(value) and not isinstance(value, type):
            items = [
                [field.name, self._of(getattr(value, field.name), f"{place}.{field.name}")]
                for field in fields(value)
            ]
            return ["data", self._name(type(value), place), items]
        return ["code", self._name(value, place)]

    def _members(self, module: nn.Module, place: str) -> list[Any]:
        own = [*dict.items(module), *vars(module).items()]
        return [
            [name, self._of(item, f"{place}.{name}")]
            for name, item in sorted(own, key=lambda item: item[0])
            if name not in _WITHOUT_EFFECT
        ]

    def _name(self, value: Any, place: str) -> str:
        """Name a class or a function by where it is defined, and note its source."""
        kinds = type | types.FunctionType | types.BuiltinFunctionType | types.MethodType
        inner = value if isinstance(value, kinds) else next(_wrapped(value), None)
        if inner is None:
            raise UnnameableError(f"{place}: a {type(value).__qualname__} has no form")
        name = f"{inner.__module__}.{inner.__qualname__}"
        if "<lambda>" in name or "<locals>" in name:
            raise UnnameableError(f"{place}: {name} may mean anything")
        if isinstance(inner, types.MethodType):
            self._owners.append((place, inner.__self__))
            inner = inner.__func__
        if isinstance(inner, types.FunctionType) and inner.__closure__:
            raise UnnameableError(f"{place}: {name} keeps values that have no form")
        source = sys.modules[inner.__module__].__dict__.get("__file__") if inner.__module__ else ""
        if source and source.endswith(".py"):
            self.sources.add(source)
        return name


def _wrapped(value: Any) -> Iterator[Any]:
    """Give a compiled function's original, if it names one."""
    if callable(value):
        try:
            inner = value.__wrapped__
        except AttributeError:
            return
        if isinstance(inner, types.FunctionType):
            yield inner
