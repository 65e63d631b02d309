"""Fixtures shared by the shim's unit tests."""

import os
import tempfile
from collections.abc import Iterator

import pytest
from tierkv.connectors.vllm import amx


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path short enough for a Unix socket, in a private folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        yield os.path.join(folder, "s.sock")


@pytest.fixture(autouse=True)
def without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is restored does not depend on the CPU that runs the tests."""
    monkeypatch.setattr(amx, "has_tiles", lambda: False)
