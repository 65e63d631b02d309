"""Breaks methods of the shim inside an engine's process, so that a test sees the engine's reaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm.engine.scheduler import SchedulerShim
from tierkv.connectors.vllm.engine.worker import WorkerShim

if TYPE_CHECKING:
    from harness.engine_main import Host


class InjectedError(Exception):
    """Raised on a test's demand."""


def break_method(host: Host, side: str, method: str, *, is_late: bool, skip: int = 0) -> None:
    """Makes a method of a half raise after `skip` calls; `is_late`: after it has done its work."""
    half = host.shim if side == "scheduler" else host.worker
    _break(half, method, is_late=is_late, skip=skip)


def break_from_start(side: str, method: str) -> None:
    """Does the same for every engine of this process, before any exists."""
    _break(SchedulerShim if side == "scheduler" else WorkerShim, method, is_late=False, skip=0)


def _break(owner: Any, method: str, *, is_late: bool, skip: int) -> None:
    real = getattr(owner, method)
    calls = 0

    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls <= skip:
            return real(*args, **kwargs)
        if is_late:
            real(*args, **kwargs)
        raise InjectedError(method)

    setattr(owner, method, broken)
