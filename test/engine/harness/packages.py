"""Packages of this commit and of an earlier one: the wheel that a release makes, unpacked."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING

from harness.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TARGET = "linux-x64-gnu"
#: Only a hung command reaches it; a core that changed is compiled.
MAKE_S = 1_500.0
LOADER = "crates/node/index.js"
PROGRAM = "tierkv/_program/bin/tierkv.js"


def unpacked(commit: str | None, into: Path) -> Path:
    """Return the folder of the package that `commit` makes; None: this working tree."""
    folder = into / "package"
    folder.mkdir(parents=True)
    checkout = ROOT
    if commit is not None:
        checkout = into / "checkout"
        _run(
            ["git", "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(checkout)], ROOT
        )
        hashed = subprocess.check_output(["git", "rev-parse", commit], cwd=ROOT, text=True).strip()
        _run(["git", "checkout", "--quiet", "--detach", hashed], checkout)
        for name in ("node_modules", ".venv"):
            (checkout / name).symlink_to(ROOT / name)
        _run(["npm", "run", "build:ts"], checkout)
    addon = _addon(checkout, commit)
    made = into / "release"
    make = ["node", "packaging/release.js", "--only", TARGET, "--addon", str(addon)]
    _run([*make, "--folder", str(made)], checkout)
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shutil.rmtree(made)
    if checkout != ROOT:
        shutil.rmtree(checkout)
    return folder


def _addon(checkout: Path, commit: str | None) -> Path:
    """Return the native core of a checkout: this one's where the crates are the same, else compiled."""
    name = f"crates/node/tierkv-core.{TARGET}.node"
    if checkout == ROOT:
        return ROOT / name
    same = ["git", "diff", "--quiet", commit or "HEAD", "--", "crates"]
    if subprocess.run(same, cwd=ROOT, check=False).returncode == 0:
        # Written by the build, beside the core.
        shutil.copy(ROOT / LOADER, checkout / LOADER)
        return ROOT / name
    _run(["npm", "run", "build:native"], checkout)
    return checkout / name


def _run(argv: list[str], folder: Path) -> None:
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=MAKE_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
