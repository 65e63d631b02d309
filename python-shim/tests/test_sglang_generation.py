"""The generation of weights in SGLang, what sets it, and shared modules that work without vLLM."""

import subprocess
import sys

import pytest
from tierkv.sglang.generation import Generation


def test_a_change_with_pages_waits_for_a_flush_and_one_without_does_not() -> None:
    one = Generation()
    assert (one.name, one.number, one.is_mixed) == ("", 0, False)
    one.note_change()
    first = one.name
    assert (bool(first), one.number, one.is_mixed) == (True, 1, False)
    one.note_pages()
    one.note_change()
    assert (one.name != first, one.number, one.is_mixed) == (True, 2, True)
    # A second change does not forget what the caches hold.
    one.note_change()
    assert one.is_mixed
    one.note_flush()
    assert (one.number, one.is_mixed) == (3, False)
    one.note_change()
    assert not one.is_mixed


#: What engines without vLLM use of the shim.
SHARED = (
    "link.link",
    "link.messages",
    "link.settings",
    "naming.digests",
    "naming.files",
    "api.canonical",
)


@pytest.mark.parametrize("room", ["sglang", "mlx"])
def test_what_other_engines_use_needs_no_vllm(room: str) -> None:
    code = f"""
import ast, importlib, pathlib, sys
sys.modules["vllm"] = None
for name in {SHARED!r}:
    importlib.import_module(f"tierkv.connectors.vllm.{{name}}")
import tierkv
for path in (pathlib.Path(tierkv.__file__).parent / {room!r}).glob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tierkv.connectors"):
            importlib.import_module(node.module)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
