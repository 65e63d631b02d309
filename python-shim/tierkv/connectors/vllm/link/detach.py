"""Becomes the given command, detached from the engine: in its own session, on all processors, with no parent.

Run by path in a fresh interpreter that imports nothing of ours, so that the engine itself never forks.
"""

import contextlib
import os
import sys


def main(command: list[str]) -> None:
    """Fork, so that the engine reaps only the parent, and replace the child. Errors go to standard error, the log."""
    if os.fork() > 0:
        return
    os.setsid()
    # vLLM's CPU worker is pinned to some processors, and children inherit that.
    with contextlib.suppress(AttributeError):  # other systems bind none
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    try:
        os.execv(command[0], command)  # noqa: S606 - the command that autostart.py found, no shell
    except OSError as error:
        print(f"tierKV: cannot run {command[0]}: {error}", file=sys.stderr)  # noqa: T201 - the log
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
