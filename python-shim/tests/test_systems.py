"""What the shim asks of a system that is not Linux: tests of its socket and its memory hold there, too."""

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tierkv.connectors.vllm.link import systems

from .support import another_system

ROOT = Path(__file__).parents[2]
#: What meets the system: memory that arrives by descriptor, the socket, who is behind it, threads.
MEETING_IT = ("arena", "channel", "dial", "digests", "link")


@pytest.mark.nightly
def test_a_sidecar_is_found_and_its_memory_mapped_without_what_linux_alone_has() -> None:
    files = [f"python-shim/tests/test_{name}.py" for name in MEETING_IT]
    runner = "-m pytest -q -c python-shim/pyproject.toml --rootdir . -p no:cacheprovider"
    ran = subprocess.run(
        [sys.executable, *runner.split(), *files],
        cwd=ROOT,
        env={**os.environ, another_system.VARIABLE: "on"},
        timeout=600,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


class Mac(socket.socket):
    """Answers what macOS does when it is asked who is at the other end."""

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        assert (level, option, size) == (0, 1, 76)
        return struct.pack("2Ih64x", 0, 501, 1).ljust(size, b"\0")


def test_macos_tells_who_listens_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        monkeypatch.delattr(socket, "SO_PEERCRED", raising=False)
        assert systems.peer_uid(other) is None
        monkeypatch.setattr(sys, "platform", "darwin")
        with Mac(socket.AF_UNIX) as mac:
            assert systems.peer_uid(mac) == 501


def test_the_beginning_of_a_process_is_told_without_proc_and_rather_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = systems.born_ns()
    monkeypatch.setattr(systems, "_STAT", Path("/nonexistent"))
    assert 0 <= exact - systems.born_ns() < 3_000_000_000


@pytest.mark.parametrize(
    ("said", "seconds"), [("00:07", 7), ("01:02:03", 3723), ("2-00:00:01", 172_801)]
)
def test_the_time_that_ps_tells_is_read(
    said: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = subprocess.CompletedProcess([], 0, stdout=f" {said}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ran)
    monkeypatch.setattr(systems, "_STAT", Path("/nonexistent"))
    ago_ns = time.time_ns() - systems.born_ns()
    assert round(ago_ns / 1e9) - 1 == seconds


def test_a_folder_that_was_swapped_while_it_was_connected_to_is_noticed(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systems, "_OWN_FOLDERS", Path("/nonexistent"))
    place = Path(socket_path)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(socket_path)
        server.listen()
        folder = os.open(place.parent, os.O_RDONLY)
        systems.connect(client, folder, place)
        other = os.open("/", os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as second, pytest.raises(OSError, match="another"):
            systems.connect(second, other, place)
        os.close(other)
        os.close(folder)
