"""A killed test run leaves nothing: processes in sessions of their own end, too."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from harness import reaper
from harness.processes import ROOT, wait_until

#: Imitates conftest.py, then leaves an orphan in its own session, like a killed engine's worker.
_RUN = """
import os, subprocess, sys, time
from harness import reaper
os.environ[reaper.MARK] = sys.argv[1]
kept = reaper.start(sys.argv[1])
orphan = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
subprocess.run([sys.executable, "-c", orphan], check=True)
time.sleep(600)
"""


def _is_named(word: str) -> bool:
    """Returns whether a process has it in its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_what_a_killed_run_started_is_ended() -> None:
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "test/engine")}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN, mark], stdout=subprocess.PIPE, env=environment
    ) as run:
        try:
            assert run.stdout is not None
            orphan = int(run.stdout.readline())
            # The process that started it may not have ended yet.
            wait_until(lambda: [pid for pid, _ in reaper.marked(mark)] == [orphan], "the orphan")
        finally:
            run.kill()
    wait_until(lambda: not reaper.marked(mark), "the orphan is ended")
    wait_until(lambda: not _is_named(mark), "the reaper has ended")
