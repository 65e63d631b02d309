#!/usr/bin/env python3
"""Measures how fast KV-cache stores restore blocks over loopback, all with the same work, in turns.

Each rival runs in a process of its own; in every round each of them does one restore, so that a noisy moment hits
all of them. The whole run sits in private network and PID namespaces: nothing outside can reach a server, and no
process outlives the run, however it ends.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
from report import markdown, summarize
from rivals import RIVALS

HERE = Path(__file__).resolve().parent
#: File in this process's own network namespace.
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
NAMESPACE_MARK = "RIVALS_PRIVATE_NETWORK"
STOP_TIMEOUT_S = 60


def main() -> None:
    options = parse_options()
    enter_namespaces(options.congestion)
    rows = []
    for number, shape in enumerate(zip(options.block_bytes, options.blocks, strict=True)):
        rows += summarize(shape, measure(options, shape, with_lookup=number == 0))
    machine = {
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "date": time.strftime("%Y-%m-%d"),
        "congestion_control": CONGESTION_CONTROL.read_text().strip(),
    }
    print("\n".join(markdown(rows)))
    if options.json:
        report = {
            "machine": machine,
            "command": " ".join(sys.argv),
            "rounds": options.rounds,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(report, indent=2))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rival", nargs="+", default=["all"], choices=["all", *RIVALS])
    parser.add_argument("--block-bytes", nargs="+", type=int, default=[256 << 10, 1 << 20, 4 << 20])
    parser.add_argument(
        "--blocks",
        nargs="+",
        type=int,
        default=[512, 128, 64],
        help="one count for each block size",
    )
    parser.add_argument("--lanes", type=int, help="connections; without it, each rival's default")
    parser.add_argument(
        "--congestion",
        metavar="NAME",
        help="TCP congestion control of all stores; else the system's",
    )
    parser.add_argument("--rounds", type=int, default=15, help="timed restores of each rival")
    parser.add_argument(
        "--json", metavar="FILE", help="also write all figures, with every sample, to FILE"
    )
    options = parser.parse_args()
    if len(options.block_bytes) != len(options.blocks):
        parser.error("--blocks needs one count for each of --block-bytes")
    if "all" in options.rival:
        options.rival = list(RIVALS)
    return options


def enter_namespaces(congestion: str | None) -> None:
    """Starts this program again where only its own loopback exists, because some stores listen on all interfaces.

    It is process 1 there: the kernel kills every other process with it.
    """
    if NAMESPACE_MARK in os.environ:
        if congestion:
            CONGESTION_CONTROL.write_text(congestion)
        return
    os.environ[NAMESPACE_MARK] = "1"
    # Servers of the same environment are found by name.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    unshare = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    unshare += [] if os.geteuid() == 0 else ["--map-root-user"]
    again = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
    os.execvp("unshare", [*unshare, *again])


class CellProcess:
    """One rival's process: answers a line of JSON to each command."""

    def __init__(self, name: str, shape: tuple[int, int], lanes: int) -> None:
        self.name, self.lanes = name, lanes
        argv = [sys.executable, str(HERE / "cell.py"), name, *map(str, shape), str(lanes)]
        self.process = subprocess.Popen(
            argv,
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "CellProcess":
        return self

    def __exit__(self, *_: object) -> None:
        """Lets it end its servers; what is left of its session after that, or after a failure, is killed."""
        try:
            if self.process.poll() is None:
                self.process.communicate("end\n", STOP_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with code {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.answer()


def measure(
    options: argparse.Namespace, shape: tuple[int, int], *, with_lookup: bool
) -> dict[str, dict[str, Any]]:
    """Measure all rivals of one shape; a failing one is reported and left out."""
    with ExitStack() as stack:
        found: dict[str, dict[str, Any]] = {}
        cells: dict[str, CellProcess] = {}
        for name in options.rival:
            say(f"{shape[1]} x {shape[0] >> 10} KiB: start {name}")
            cell = CellProcess(name, shape, options.lanes or RIVALS[name].lanes)
            try:
                with ExitStack() as until_stored:
                    until_stored.enter_context(cell)
                    found[name] = cell.answer() | {"lanes": cell.lanes, "restores": []}
                    stack.push(until_stored.pop_all())
                cells[name] = cell
            except RuntimeError as error:
                say(str(error))
        for number in range(options.rounds if cells else 0):
            say(f"{shape[1]} x {shape[0] >> 10} KiB: round {number + 1} of {options.rounds}")
            for name, cell in rotated(cells, number):
                found[name]["restores"].append(cell.ask("restore"))
        for name, cell in cells.items():
            found[name] |= cell.ask("latency")
            if with_lookup:
                found[name] |= cell.ask("lookup")
        return found


def rotated(cells: dict[str, CellProcess], number: int) -> list[tuple[str, CellProcess]]:
    """Rotate the order, so that another rival goes first in every round."""
    items = list(cells.items())
    first = number % len(items)
    return items[first:] + items[:first]


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
