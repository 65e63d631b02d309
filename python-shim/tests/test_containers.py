"""An engine in a PID and mount namespace of its own, as in a container: the socket is all that both sides share."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import FrameDecoder, encode

from .support.sidecar import wait_until

ROOT = Path(__file__).resolve().parents[2]
PEER = Path(__file__).parent / "support" / "peer.py"
#: `--mount-proc`: the sidecar's processes, and what they have open, are not to be seen in there.
APART = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
START_S = 60.0


def can_unshare() -> bool:
    try:
        return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not can_unshare(), reason="namespaces cannot be made here")


@pytest.fixture
def sidecar(socket_path: str) -> Iterator[str]:
    """A real sidecar with a vault of its own; gives its socket."""
    config = Path(socket_path).with_name("tierkv.toml")
    config.write_text(
        "[turbo_quant]\nenabled = false\n"
        f'[vault]\nmax_bytes = "32MiB"\n[sidecar]\nsocket = "{socket_path}"\narena_bytes = "64MiB"\n'
        '[restore]\nwhen = "always"\n',
        "utf-8",
    )
    argv = ["node", str(ROOT / "bin/tierkv.js"), "sidecar", "--json", "--config", str(config)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        assert b"ready" in program.stdout.readline()
        yield socket_path
        program.terminate()
        program.wait(START_S)


def counters(path: str) -> dict[str, int]:
    """Ask the sidecar, from outside."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(START_S)
        link.connect(path)
        hello = {"t": "hello", "protocol": limits.LOCAL_PROTOCOL, "role": "status"}
        link.sendall(encode(hello) + encode({"t": "status"}))
        decoder = FrameDecoder()
        while data := link.recv(1 << 16):
            for frame in decoder.feed(data):
                if frame["t"] == "status_reply":
                    return dict(frame["status"]["counters"])
    raise ConnectionError(path)


def peer(path: str, what: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python-shim")}
    argv = [*APART, sys.executable, str(PEER), path, what]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def result(program: subprocess.Popen[bytes]) -> int:
    out, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors.decode()[-3000:]
    return int(json.loads(out))


def test_an_engine_in_another_pid_and_mount_namespace_saves_and_restores(sidecar: str) -> None:
    saving = peer(sidecar, "save")
    wait_until(lambda: counters(sidecar).get("blocks_saved") == 3, "3 blocks are saved", 120)
    assert result(saving) == 3
    assert result(peer(sidecar, "restore")) == 3
    assert counters(sidecar).get("arenas_unmapped", 0) == 0
