"""Reads Python sources (JSON on stdin: a list of path and text) and prints what the house rules ask about them."""

import ast
import json
import sys
from typing import Any


def dotted(node: ast.expr) -> str:
    """Return "torch.load" for such an expression, "" for anything that is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def imported(node: ast.AST) -> list[str]:
    """Name the modules an import statement brings in; relative ones are our own package's."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return ["tierkv" if node.level else node.module or ""]
    return []


def facts(path: str, text: str) -> dict[str, Any]:
    """Collect imports, calls, names and function lengths of one file."""
    tree = ast.parse(text, path)
    found: dict[str, Any] = {
        "path": path,
        "doc": ast.get_docstring(tree) or "",
        "imports": [],
        "calls": [],
        "names": [],
        "functions": [],
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for module in imported(node):
            top = module.split(".")[0]
            found["imports"].append(
                {"line": line, "module": module, "standard": top in sys.stdlib_module_names}
            )
        if isinstance(node, ast.Call):
            found["calls"].append({"line": line, "name": dotted(node.func), "args": len(node.args)})
        if isinstance(node, ast.Attribute | ast.Name):
            found["names"].append({"line": line, "name": dotted(node)})
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or line) - line + 1
            found["functions"].append({"line": line, "name": node.name, "lines": lines})
    return found


print(json.dumps([facts(source["path"], source["text"]) for source in json.load(sys.stdin)]))
