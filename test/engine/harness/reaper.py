"""Ends the processes of a test run once the run is gone, because engines start sessions of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Variable in the environment of everything a run starts, by which its processes are found.
MARK = "TIERKV_TEST_MARK"
#: Bound on rounds, because a dying process may still start others.
TURNS = 50
TURN_S = 0.1


def start(mark: str) -> subprocess.Popen[bytes]:
    """Starts a reaper that ends with this process: the only writer of its standard input."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    return subprocess.Popen(
        [sys.executable, __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def marked(mark: str) -> list[tuple[int, str]]:
    """Returns ids and command lines of the processes with a mark, without this one."""
    entry_of = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if entry_of in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append((int(entry.name), line.strip()))
    return found


def main() -> None:
    sys.stdin.buffer.read()
    for _ in range(TURNS):
        found = marked(sys.argv[1])
        if not found:
            return
        for pid, _line in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(TURN_S)


if __name__ == "__main__":
    main()
