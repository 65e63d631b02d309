#!/usr/bin/env python3
"""Measures the gateway beside vllm-router and sglang-router: same engines, same load, the router alone on a core.

Usage: bench/routers/run.py [--seconds N] [--rounds N] [--write], in a built checkout with Go and two processors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from table import Row, write_table

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "performance" / "gateway.md"
PACKAGES = ["vllm-router==0.1.17", "sglang-router==0.3.2"]
ENGINES = 4
PRESETS = ["round-robin", "prefix-weighted", "earliest-token"]
POLICIES = ["round_robin", "cache_aware"]
#: Mode of the load, its connections, and its share of `--seconds`.
LOADS = [("slow", 8, 1.0), ("fast", 64, 1.0), ("stream", 300, 0.5), ("crowd", 5_000, 0.5)]
#: Requests at one engine at once, of the gateway, and of a router over all: room for the crowd.
IN_FLIGHT, AT_ONCE = 2_000, 8_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: Router on the first processor, engines and load on the second.
ROUTER, OTHERS = ["taskset", "-c", "0"], ["taskset", "-c", "1"]
READY_S = 60
#: Longest time of a load beyond its own: a crowd ends with its last stream.
LATE_S = 300
#: Routers ask their engines several times before they serve.
SETTLE_S = 4
STOP_S = 15


@dataclass
class Scene:
    """Tools and engines of one run."""

    folder: Path
    tool: Path
    engines: list[int]
    seconds: float
    #: Length of the load before the first that counts.
    warm_s: float


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def wait_until_up(port: int) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise SystemExit(f"nothing answers at port {port}")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def resident_mb(pid: int, what: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(what))


def forget_peak(pid: int) -> None:
    """Lets the peak of the process's memory begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def load(scene: Scene, url: str, mode: str, connections: int, seconds: float) -> dict[str, Any]:
    argv = [*OTHERS, str(scene.tool), "load", url, mode, str(connections), str(seconds)]
    one = {**os.environ, "GOMAXPROCS": "1"}
    done = subprocess.run(argv, check=True, capture_output=True, env=one, timeout=seconds + LATE_S)
    return dict(json.loads(done.stdout))


def measure(scene: Scene, name: str, port: int, pid: int | None) -> Iterator[Row]:
    """Prints and yields a row for each load."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    load(scene, url, "fast", 8, scene.warm_s)
    for mode, connections, share in LOADS:
        before = cpu_seconds(pid) if pid is not None else 0.0
        if pid is not None:
            forget_peak(pid)
        row = load(scene, url, mode, connections, scene.seconds * share)
        used = cpu_seconds(pid) - before if pid is not None else 0.0
        count = row["events"] if mode in {"stream", "crowd"} else row["n"]
        row |= {"name": name, "mode": mode, "us": round(used / max(count, 1) * 1e6, 1)}
        row["mb"] = resident_mb(pid) if pid is not None else 0
        row["peak_mb"] = resident_mb(pid, "VmHWM") if pid is not None else 0
        print(json.dumps(row), flush=True)
        yield row


@contextlib.contextmanager
def running(scene: Scene, argv: list[str], **more: str) -> Iterator[subprocess.Popen[bytes]]:
    log = (scene.folder / "log").open("ab")
    child = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, **more})
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def routers(scene: Scene) -> Iterator[tuple[str, int, list[str], dict[str, str]]]:
    """Yields name, port, command line and environment of each router."""
    for preset in PRESETS:
        port, state = free_port(), scene.folder / preset
        state.mkdir(exist_ok=True)
        engines = json.dumps([f"127.0.0.1:{engine}" for engine in scene.engines])
        config = (
            f'[gateway]\nlisten = "127.0.0.1:{port}"\nengines = {engines}\npreset = "{preset}"\n'
            f"in_flight_max = {IN_FLIGHT}\n"
        )
        (state / "gateway.toml").write_text(config)
        places = {"XDG_RUNTIME_DIR": str(state), "XDG_STATE_HOME": str(state)}
        argv = [
            "node",
            str(ROOT / "bin/tierkv.js"),
            "gateway",
            "--config",
            str(state / "gateway.toml"),
        ]
        yield f"tierKV {preset}", port, argv, places
    urls = [f"http://127.0.0.1:{engine}" for engine in scene.engines]
    for program, first in (("vllm-router", []), ("sglang-router", ["launch"])):
        for policy in POLICIES:
            port = free_port()
            argv = [str(scene.folder / "venv/bin" / program), *first, "--worker-urls", *urls]
            argv += ["--host", "127.0.0.1", "--port", str(port), "--policy", policy]
            argv += ["--prometheus-port", str(free_port())]
            argv += ["--max-concurrent-requests", str(AT_ONCE)]
            yield f"{program} {policy}", port, argv, {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8, help="of each load")
    parser.add_argument(
        "--warm", type=float, default=2, help="seconds of load before the first that counts"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="renew the table of the docs")
    parser.add_argument("--only", default="", help="routers whose name has this text")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        tool = folder / "routers"
        subprocess.run(["go", "build", "-o", tool, "."], cwd=HERE, check=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv/bin/pip", "install", "-q", *PACKAGES], check=True)
        scene = Scene(
            folder, tool, [free_port() for _ in range(ENGINES)], options.seconds, options.warm
        )
        for engine in scene.engines:
            argv = [*OTHERS, str(tool), "engine", str(engine)]
            stack.enter_context(running(scene, argv, GOMAXPROCS="1"))
            wait_until_up(engine)
        rows += measure(scene, "one engine, no router", scene.engines[0], None)
        for _ in range(options.rounds):
            for name, port, argv, environment in routers(scene):
                if options.only.lower() not in name.lower():
                    continue
                with running(scene, [*ROUTER, *argv], **environment) as child:
                    wait_until_up(port)
                    time.sleep(SETTLE_S)
                    rows += measure(scene, name, port, child.pid)
    write_table(rows, PAGE if options.write else None)


if __name__ == "__main__":
    main()
