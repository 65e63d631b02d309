"""README's "See a restore" as printed: from `pip install` beside vLLM to a restore that its user sees.

Not as printed: the native core is compiled already, a published model on this machine replaces the hub's under the
printed name, and the port is a free one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
import urllib.request
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.processes import ROOT, wait_until
from harness.published import NIGHTLY_S, folder_of
from harness.releases import MAIN, python_of
from harness.server import FENCED, Server, launch_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_S = 600.0
BLOCKS = FENCED.findall((ROOT / "README.md").read_text())


def printed(begins: str) -> str:
    """Returns README's only block that begins with this text."""
    (found,) = (block for block in BLOCKS if block.startswith(begins))
    return str(found)


def line_of(block: str, begins: str) -> str:
    """Returns the block's line that begins with this text, without its comment."""
    (found,) = (line for line in block.splitlines() if line.startswith(begins))
    return str(found.split(" # ")[0].strip())


MAKE = line_of(printed("npm run release"), "npm run release")
INSTALL = line_of(printed("npm run release"), "pip install")
ASK = printed("python3 -c")
WATCH = line_of(printed("tierkv status "), "tierkv top")
PORT = "127.0.0.1:8000"
TARGET = MAKE.rpartition(" ")[2]
#: The model of the printed lines, as far as a CPU without the hub has it.
MODEL = "qwen25-0.5b"
ROOM = ["--dtype", "bfloat16", "--max-model-len", "4096", "--num-gpu-blocks-override", "600"]


class Machine:
    """A machine with Python and no Node.js, and its user's commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = folder / "tools"
        tools.mkdir(parents=True)
        for program in Path("/usr/bin").iterdir():
            if not program.name.startswith(("node", "npm", "npx", "tierkv")):
                (tools / program.name).symlink_to(program)
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv" / "bin" / "python"
        self.environment = {
            "PATH": f"{self.python.parent}:{tools}",
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder),
            "PYTHONPATH": "",
        }

    def types(self, line: str) -> str:
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def page_says(self) -> dict[str, Any]:
        """Returns the sidecar's status as the browser's page gets it first."""
        command = ["sh", "-c", f"exec {WATCH} --web --json"]
        web = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert web.stdout is not None
            url = json.loads(web.stdout.readline())["url"]
            with urllib.request.urlopen(f"{url}events", timeout=READY_S) as events:
                for said in events:
                    if said.startswith(b"data: ") and b'"ledger"' in said:
                        return dict(json.loads(said.removeprefix(b"data: "))["status"])
            raise AssertionError("the page was told nothing")
        finally:
            web.terminate()
            web.wait()


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    """The wheel is in `release/`, as README says; vLLM is in the environment, but its tierKV is hidden."""
    made = Machine(folder / "f")
    addon = ROOT / "crates" / "node" / f"tierkv-core.{TARGET}.node"
    release = ["node", "packaging/release.js", "--only", TARGET, "--addon", str(addon)]
    subprocess.run(
        [*release, "--folder", str(made.folder / "release")],
        cwd=ROOT,
        check=True,
        timeout=READY_S,
        stdout=subprocess.DEVNULL,
    )
    asked = "import vllm, pathlib; print(pathlib.Path(vllm.__file__).parents[1])"
    vllm = subprocess.check_output([python_of(MAIN), "-c", asked], text=True).splitlines()[-1]
    (site,) = made.folder.glob("venv/lib/python3*/site-packages")
    # Added behind the installed packages, so that the wheel's tierKV precedes the checkout's.
    (site / "vllm.pth").write_text(f"{vllm}\n")
    config = made.folder / ".config" / "tierkv"
    config.mkdir(mode=0o700, parents=True)
    (config / "tierkv.toml").write_text(
        '[sidecar]\narena_bytes = "256MiB"\nidle_exit_s = 2\n[vault]\nmax_bytes = "512MiB"\n'
    )
    yield made
    sockets = {"sidecar.sock", "sidecar.sock.vault", "sidecar.sock.vault.lanes"}
    place = made.folder / "tierkv"
    wait_until(
        lambda: sockets.isdisjoint(entry.name for entry in place.iterdir()),
        "the sidecar and its vault are gone",
        READY_S,
    )


@pytest.mark.nightly
@pytest.mark.skipif(platform.machine() != "x86_64", reason="README names the wheel of x86-64")
def test_from_pip_install_to_a_restore_that_is_seen(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(folder_of(MODEL, NIGHTLY_S))
    took: dict[str, float] = {}
    since = time.monotonic()

    def ended(step: str) -> None:
        took[step] = round(time.monotonic() - since - sum(took.values()), 1)

    machine.types(INSTALL)
    assert shutil.which("node", path=machine.environment["PATH"]) is None
    where = machine.types("python -c 'import tierkv; print(tierkv.__file__)'")
    assert where.startswith(str(machine.folder)), where
    ended("pip install")

    def top() -> dict[str, Any]:
        return dict(json.loads(machine.types(f"{WATCH} --json"))["status"])

    alone, _ = launch_lines(ROOT / "README.md")
    assert printed("VLLM_SERVER_DEV_MODE=1 vllm serve")
    environment = {**machine.environment, "VLLM_SERVER_DEV_MODE": "1"}
    log = machine.folder / "server.log"
    more = [*ROOM, "--served-model-name", alone[2]]
    with Server(alone, model, log, environment, str(machine.python), more=more) as server:
        ended("vllm serve")
        address = server.url.removeprefix("http://")
        assert PORT in ASK
        said = machine.types(ASK.replace(PORT, address))
        ended("the block of requests")
        seen = top()
        on_page = machine.page_says()
        ended("seen in top and on its page")
        # Run as on a machine that has only the engine's address and config.json.
        elsewhere = f"HOME={machine.folder / 'release'} XDG_RUNTIME_DIR= tierkv doctor"
        asked = f"--engine {server.url} --model {model} --json"
        far = json.loads(machine.types(f"{elsewhere} {asked}"))
        ended("doctor --engine")
    computed, restored = (
        float(seconds) for seconds in re.findall(r"^([\d.]+) s$", said, re.MULTILINE)
    )
    assert restored < computed, said
    assert re.match(r"\.*ready\n", said), said
    assert re.search(r"loaded up to \d+: ", said), said
    assert on_page["ledger"]["restores"] >= seen["ledger"]["restores"] >= 1
    assert seen["restores"][-1]["choice"] == "loaded"
    assert far["engine"]["hasPrefixCache"] is True
    assert far["engine"]["askedTokens"] > 0
    assert far["prompts"][0]["tokens"] == 256
    assert far["helps"]
    with capsys.disabled():
        print(
            f"\nfirst minutes: {sum(took.values()):.0f} s on {os.cpu_count()} cores: {took}; {far['change']}"
        )
