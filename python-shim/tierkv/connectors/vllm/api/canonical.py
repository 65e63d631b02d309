"""Gives a value of the engine's configuration its canonical form: equal in every process, for equal values only."""

import contextlib
import enum
import json
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final

import torch

#: Deeper nesting is refused: such a value holds itself, or is no configuration.
_DEPTH_MAX: Final = 32
#: Classes, by name, whose attributes are their content: transformers' configurations, pydantic's models.
_OPEN_CLASSES: Final = ("PretrainedConfig", "PreTrainedConfig", "BaseModel")
#: Name of every transformers configuration in tables.
HF_CONFIG: Final = "HFConfig"

Form = Any


class UnnameableError(ValueError):
    """A value has no form that two processes would agree on; the text says where it stands and of what type it is."""


class Canonical:
    """Forms are lists, strings and numbers that JSON tells apart; every one is tagged with its type.

    `exempt`: "Class.field" or "Class.field.key" -> reason; values there are left out.
    """

    def __init__(self, exempt: Mapping[str, str]) -> None:
        self._exempt = exempt

    def text(self, value: object, place: str) -> bytes:
        """Give the bytes to digest. Raises UnnameableError, with `place` as the start of the path."""
        return json.dumps(self.form(value, place), separators=(",", ":")).encode()

    def form(self, value: Any, place: str, depth: int = 0) -> Form:  # noqa: PLR0911 - one line a type
        if depth > _DEPTH_MAX:
            raise UnnameableError(f"{place}: nested more than {_DEPTH_MAX} deep")
        if isinstance(value, enum.Enum):
            return ["enum", _name(type(value)), value.name]
        if value is None or isinstance(value, bool | int | str):
            return [type(value).__name__, str(value)]
        if isinstance(value, float):
            return ["float", value.hex()]
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, torch.device):
            return ["device", value.type]  # each rank has a number of its own
        if isinstance(value, torch.dtype | PurePath):
            return [_name(type(value)), str(value)]
        if isinstance(value, type):
            return ["type", _name(value)]
        if isinstance(value, Mapping):
            items = [
                [self.form(key, place, depth + 1), self.form(item, f"{place}.{key}", depth + 1)]
                for key, item in value.items()
                if f"{place}.{key}" not in self._exempt
            ]
            return ["map", _sorted(items)]
        if isinstance(value, list | tuple):
            return ["list", [self.form(item, f"{place}[]", depth + 1) for item in value]]
        if isinstance(value, Set):
            return ["set", _sorted([self.form(item, f"{place}{{}}", depth + 1) for item in value])]
        parts = [
            [name, self.form(item, where, depth + 1)]
            for name, item, where in members(value, place)
            if where not in self._exempt
        ]
        return ["object", _name(type(value)), parts]


def members(value: Any, place: str) -> list[tuple[str, Any, str]]:
    """Give an object's attributes: name, value, and "Class.field", the key in tables.

    Raises UnnameableError for objects whose attributes may not be their whole content.
    """
    owner = _owner(value)
    if owner is None:
        raise UnnameableError(
            f"{place}: a {_name(type(value))} has no form that two processes would agree on"
        )
    names = {field.name for field in (fields(value) if is_dataclass(value) else ())}
    with contextlib.suppress(TypeError):  # a class with slots has its fields only
        names |= set(vars(value))
    derived = {
        name
        for kind in type(value).__mro__
        for name, item in vars(kind).items()
        if isinstance(item, cached_property)  # present only after its first use
    }
    return [(name, getattr(value, name), f"{owner}.{name}") for name in sorted(names - derived)]


def _owner(value: object) -> str | None:
    kind = type(value)
    if any(parent.__name__ in _OPEN_CLASSES[:2] for parent in kind.__mro__):
        return HF_CONFIG
    if is_dataclass(kind) or any(parent.__name__ in _OPEN_CLASSES for parent in kind.__mro__):
        return kind.__name__
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _sorted(forms: list[Form]) -> list[Form]:
    return sorted(forms, key=json.dumps)
