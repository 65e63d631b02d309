"""Fixtures shared by the shim's unit tests."""

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path short enough for a Unix socket, in a private folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        yield os.path.join(folder, "s.sock")
