"""The GPU kit without a GPU: it runs without vLLM, takes the layouts of this release along, and sees a wrong byte."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.layouts import PLACE, layouts

KIT = PLACE.parent / "kit.py"
#: Copies one byte too few of each page.
SPOILED = """
import sys
sys.argv = ["kit.py", "--device", "cpu", "--quick"]
sys.path.insert(0, {folder!r})
import kit
from tierkv.connectors.vllm.pages.pages import AttentionPages
whole = AttentionPages.pairs
def short(self, block, slot):
    return [(page[..., 1:], kept[..., 1:]) for page, kept in whole(self, block, slot)]
AttentionPages.pairs = short
made = AttentionPages.__init__
def one_by_one(self, *given):
    made(self, *given)
    self.rows = None
AttentionPages.__init__ = one_by_one
sys.exit(kit.main())
"""


def run(*argv: str, cwd: Path) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, *argv], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_layouts_are_those_of_this_release() -> None:
    assert json.loads(PLACE.read_text()) == layouts(), (
        "renew it: `../.venv/bin/python -m lab.layouts && ../node_modules/.bin/oxfmt ../bench/gpu/layouts.json`"
    )


def test_every_layout_comes_back_and_the_report_says_so(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    code, report = run(str(KIT), "--device", "cpu", "--quick", "--out", str(out), cwd=tmp_path)
    assert code == 0
    assert report == json.loads(out.read_text())
    small = [entry for entry in layouts()["entries"] if entry["size"] == "small"]
    assert [found["is_right"] for found in report["bytes"]] == [True] * len(small)
    ways = {"save", "load", "save, page by page", "load, page by page", "plain out", "plain in"}
    assert set(report["copies"][0]["GB/s"]) == ways
    assert report["pinning"]["GB/s"] > 0
    assert report["computing"][0]["slowdown"] > 0


def test_a_wrong_byte_is_seen(tmp_path: Path) -> None:
    code, report = run("-c", SPOILED.format(folder=str(KIT.parent)), cwd=tmp_path)
    assert code == 1
    wrong = {found["name"] for found in report["bytes"] if not found["is_right"]}
    assert wrong == {"attention bf16"}  # the only canonical one
