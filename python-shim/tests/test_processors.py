"""Helper threads run where the engine does not compute: in a process that is bound as vLLM binds its CPU workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

BOUND = """
import json, os, sys, threading
from tierkv.connectors.vllm.link import processors
from tierkv.connectors.vllm.link.channel import Channel

os.sched_setaffinity(0, json.loads(sys.argv[1]))
seen = {}

class Listener:
    def on_open(self, welcome): pass
    def on_frame(self, frame): pass
    def on_close(self): pass

tried = threading.Event()
def unreachable():
    seen["helper"] = sorted(os.sched_getaffinity(0))
    tried.set()

channel = Channel("/nonexistent/tierkv.sock", {"t": "hello"}, Listener(), dict, unreachable)
channel.start()
assert tried.wait(10)
seen["engine"] = sorted(os.sched_getaffinity(0))
channel.close()
print(json.dumps(seen))
"""

MINE = sorted(os.sched_getaffinity(0))


def helper_beside(bound: list[int], **environment: str) -> dict[str, list[int]]:
    """Gives where the engine's thread and the channel's run in a child bound to `bound`."""
    argv = [sys.executable, "-c", BOUND, json.dumps(bound)]
    inherited = {name: value for name, value in os.environ.items() if "OMP" not in name}
    env = {**inherited, **environment}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=env)
    seen: dict[str, list[int]] = json.loads(done.stdout)
    return seen


needs_two = pytest.mark.skipif(len(MINE) < 2, reason="one processor only")


@needs_two
def test_the_helper_thread_leaves_the_processors_its_engine_is_bound_to() -> None:
    bound, others = MINE[:1], MINE[1:]
    seen = helper_beside(bound, OMP_PLACES=f"{{{bound[0]}}}")
    assert seen == {"engine": bound, "helper": others}


@needs_two
def test_whoever_is_bound_by_others_than_openmp_stays_there() -> None:
    bound = MINE[:1]
    assert helper_beside(bound) == {"engine": bound, "helper": bound}


def test_where_nobody_is_bound_the_helper_runs_anywhere() -> None:
    assert helper_beside(MINE, OMP_PLACES="{0}") == {"engine": MINE, "helper": MINE}
