"""Ends what a run of tests started once that run is gone, however it ended: engines start sessions of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: In the environment of everything a run starts, so that it is found whoever started it.
MARK = "TIERKV_TEST_MARK"
#: What a process that is being killed may still start.
TURNS = 50
TURN_S = 0.1


def start(mark: str) -> subprocess.Popen[bytes]:
    """Starts one that waits until this process has ended: nobody else holds the other end of its standard input."""
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
    """Ids and command lines of the processes that bear a mark, without this one."""
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
