"""README's first commands as printed: from `pip install` beside vLLM to a visible restore."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
import urllib.request
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.models import Models, prompt
from harness.processes import ROOT, wait_until
from harness.releases import MAIN, python_of
from harness.server import FENCED, Server, launch_lines
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Small to load, and slow enough to compute that a restore answers first.
MODEL = Spec(layers=8, hidden=512, heads=8, kv_heads=2, head_dim=64, vocab=512, dtype="float32")
TEXT = prompt(21, 850)
READY_S = 600.0
BLOCKS = [block.strip() for block in FENCED.findall((ROOT / "README.md").read_text())]
INSTALL = next(block for block in BLOCKS if block.startswith("pip install")).splitlines()[0]
WATCH = next(block for block in BLOCKS if block.startswith("tierkv top")).split("#")[0].strip()
TARGET = "linux-x64-gnu"


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
    machine: Machine, models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
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
    environment = {**machine.environment, "VLLM_SERVER_DEV_MODE": "1"}
    log = machine.folder / "server.log"
    with Server(alone, models.path(MODEL), log, environment, str(machine.python)) as server:
        ended("vllm serve")
        seeds = iter(range(22, 10_000))

        def is_saving() -> bool:
            server.complete(prompt(next(seeds), 300))
            return (machine.folder / "tierkv").exists() and bool(top()["counters"]["blocks_saved"])

        wait_until(is_saving, "blocks are saved", READY_S)
        ended("named and saving")

        def is_restored() -> bool:
            server.complete(TEXT)
            server.post("/reset_prefix_cache")
            return bool(top()["ledger"]["restores"])

        wait_until(is_restored, "a prompt is restored", READY_S)
        seen = top()
        on_page = machine.page_says()
        ended("restored and seen")
        # Run as on a machine that has only the engine's address and config.json.
        elsewhere = f"HOME={machine.folder / 'release'} XDG_RUNTIME_DIR= tierkv doctor"
        asked = f"--engine http://127.0.0.1:{server.port} --model {models.path(MODEL)} --json"
        far = json.loads(machine.types(f"{elsewhere} {asked}"))
        ended("doctor --engine")
    assert seen["ledger"]["tokens"] >= 128
    assert on_page["ledger"]["restores"] >= seen["ledger"]["restores"] >= 1
    assert seen["restores"][-1]["choice"] == "loaded"
    assert far["engine"]["hasPrefixCache"] is True
    assert far["engine"]["askedTokens"] > 0
    assert [row["tokens"] for row in far["prompts"]] == [256, 512, 899]
    assert far["helps"]
    with capsys.disabled():
        print(
            f"\nfirst minutes: {sum(took.values()):.0f} s on {os.cpu_count()} cores: {took}; {far['change']}"
        )
