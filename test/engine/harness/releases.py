"""The vLLM releases the tests run on: the newest lives in .venv, each other one in an environment of its own."""

from __future__ import annotations

import os
import sys

from harness.processes import ROOT

#: What python-shim/engine-lock.txt holds.
NEWEST = "0.32.0"
#: The oldest release the shim accepts; set up beside the newest.
OLDEST = "0.28.0"
#: The releases that tests of releases run on, separated by commas; .ci/lib/stages.js chooses them.
VARIABLE = "TIERKV_TEST_RELEASES"
#: The release all other tests run on.
MAIN = os.environ.get("TIERKV_TEST_ENGINE", NEWEST)
#: vLLM's model runner: V2 is what runs on GPUs, and a hundred times slower here (interpreted.py).
IS_V2 = os.environ.get("TIERKV_TEST_RUNNER") == "v2"
#: `npm run test:nightly` runs the long form of some tests.
IS_LONG = bool(os.environ.get("TIERKV_TEST_LONG"))


def releases() -> list[str]:
    """The releases of this run."""
    named = os.environ.get(VARIABLE)
    return named.split(",") if named else [OLDEST, NEWEST]


def python_of(release: str) -> str:
    """The interpreter that has a release. Raises FileNotFoundError naming what makes it."""
    if release == NEWEST:
        return sys.executable
    python = ROOT / f".venv-{release}" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: run `npm run setup`")
    return str(python)
