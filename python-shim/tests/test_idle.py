"""Steps in which the engine waits for the sidecar: only one that computes nothing lets the helper thread run."""

from types import SimpleNamespace

import pytest
from tierkv.connectors.vllm import compat, idle, limits

from .support.engine import Request
from .support.scheduler import ASK_AGAIN, Bench
from .support.sidecar import FakeSidecar


def test_only_a_step_that_waits_and_computes_nothing_sleeps(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()
    monkeypatch.setattr(idle, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(compat, "none_hash", lambda: bytes(32))
    with FakeSidecar(socket_path) as sidecar:
        bench = Bench(socket_path, sidecar)
        request = bench.new(Request("r", 16))
        bench.prefetch()
        assert bench.ask(request) == ASK_AGAIN
        bench.step({})
        assert slept == [limits.IDLE_STEP_S]
        bench.step({})  # nobody waits
        assert bench.ask(request) == ASK_AGAIN
        bench.step({"other": 1}, other=[1])
        bench.step({})
        bench.shim.shutdown()
    assert len(slept) == 1
