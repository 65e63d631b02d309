"""Owns what the text of a vLLM release says, read from its Python files: nothing is imported, so any wheel will do."""

from __future__ import annotations

import ast
import hashlib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    Function = ast.FunctionDef | ast.AsyncFunctionDef

#: What vLLM calls its connector where it uses it.
_HOLDERS = ("connector", "kv_connector", "_connector", "_kv_connector")
_GETTER = "get_kv_transfer_group"


class Release:
    """The Python files of one release: a wheel, or the folder that holds `vllm/`."""

    def __init__(self, place: Path) -> None:
        self._folder = None if place.is_file() else place
        self._wheel = zipfile.ZipFile(place) if place.is_file() else None
        self._trees: dict[str, ast.Module | None] = {}
        self._names = frozenset(self._wheel.namelist()) if self._wheel else None

    def files(self, folder: str) -> list[str]:
        """Give the Python files below a folder, sorted."""
        if self._folder is not None:
            found = (self._folder / folder).rglob("*.py")
            return sorted(str(path.relative_to(self._folder)) for path in found)
        names = self._names or ()
        return sorted(
            name for name in names if name.startswith(f"{folder}/") and name.endswith(".py")
        )

    def tree(self, path: str) -> ast.Module | None:
        """Parse a file; None for one that the release lacks."""
        if path not in self._trees:
            text = self._read(path)
            self._trees[path] = None if text is None else ast.parse(text)
        return self._trees[path]

    def _read(self, path: str) -> str | None:
        if self._folder is not None:
            file = self._folder / path
            return file.read_text() if file.is_file() else None
        assert self._wheel is not None
        return self._wheel.read(path).decode() if path in (self._names or ()) else None


def signature(function: Function) -> str:
    """Write parameters with their defaults; annotations are left out, because their spelling binds nobody."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    missing = len(positional) - len(given.defaults)
    defaults = [None] * missing + list(given.defaults)
    parts = [_parameter(arg.arg, value) for arg, value in zip(positional, defaults, strict=True)]
    if given.vararg:
        parts.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        parts.append("*")
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    parts += [_parameter(arg.arg, value) for arg, value in named]
    if given.kwarg:
        parts.append(f"**{given.kwarg.arg}")
    marks = sorted(
        mark
        for mark in map(ast.unparse, function.decorator_list)
        if mark in {"classmethod", "staticmethod", "property", "abstractmethod", "cached_property"}
    )
    return " ".join([*marks, f"({', '.join(parts)})"])


def _parameter(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"


def body(function: Function) -> str:
    """Digest what a function does: its statements without the docstring."""
    statements = function.body
    if ast.get_docstring(function) is not None:
        statements = statements[1:]
    text = "\n".join(map(ast.unparse, statements))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """Give a file's classes by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def members(node: ast.ClassDef) -> dict[str, str]:
    """Give a class's own methods, fields and the attributes that its methods set, each with what it looks like."""
    found: dict[str, str] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            found[item.name] = signature(item)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            value = "" if item.value is None else f" = {ast.unparse(item.value)}"
            found[item.target.id] = f"field{value}"
        elif isinstance(item, ast.Assign):
            for target in item.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = f"value {ast.unparse(item.value)}"
    for name in _set_by_methods(node):
        found.setdefault(name, "attribute")
    return found


def _set_by_methods(node: ast.ClassDef) -> Iterator[str]:
    for part in ast.walk(node):
        targets = part.targets if isinstance(part, ast.Assign) else []
        if isinstance(part, ast.AnnAssign):
            targets = [part.target]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ):
                yield target.attr


def connector_calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Give what a file calls on the engine's connector: a method, and how many arguments of which names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if _is_connector(node.func.value):
            names = [f"{word.arg}=" if word.arg else "**" for word in node.keywords]
            yield node.func.attr, f"({', '.join([*('_' for _ in node.args), *names])})"


def _is_connector(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == _GETTER
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name in _HOLDERS
