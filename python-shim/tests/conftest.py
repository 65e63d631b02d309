"""Fixtures shared by the shim's unit tests."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from .support import another_system

if another_system.VARIABLE in os.environ:
    another_system.become()

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.pages import amx

from .support.scheduler import Bench
from .support.sidecar import FakeSidecar


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path short enough for a Unix socket, in a private folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        yield os.path.join(folder, "s.sock")


@pytest.fixture(autouse=True)
def without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is restored does not depend on the CPU that runs the tests."""
    monkeypatch.setattr(amx, "has_tiles", lambda: False)


@pytest.fixture
def engine_core_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of block hashes is known, and a sidecar that comes back is found at once."""
    monkeypatch.setattr(compat, "none_hash", lambda: bytes(range(32)))
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)


@pytest.fixture
def shape() -> dict[str, Any]:
    """What a file's bench has otherwise than most."""
    return {}


@pytest.fixture
def bench(socket_path: str, shape: dict[str, Any], engine_core_started: None) -> Iterator[Bench]:
    """The scheduler's half of a shim, connected to a sidecar's stand-in."""
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar, **shape) as made:
        yield made
