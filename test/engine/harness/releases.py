"""The vLLM releases that tests run on: the newest in .venv, each other one in an environment of its own."""

from __future__ import annotations

import os
import sys

from harness.processes import ROOT

#: The release in python-shim/engine-lock.txt.
NEWEST = "0.32.0"
#: The oldest release the shim accepts; set up beside the newest.
OLDEST = "0.28.0"
#: Variable with the releases for tests of releases, separated by commas; .ci/lib/stages.js sets it.
VARIABLE = "TIERKV_TEST_RELEASES"
#: The release that all other tests run on.
MAIN = os.environ.get("TIERKV_TEST_ENGINE", NEWEST)
#: Whether vLLM uses model runner V2, which GPUs use and which is a hundred times slower here (interpreted.py).
IS_V2 = os.environ.get("TIERKV_TEST_RUNNER") == "v2"
#: Whether some tests take their long form, as in `npm run test:nightly`.
IS_LONG = bool(os.environ.get("TIERKV_TEST_LONG"))


def releases() -> list[str]:
    """Returns the releases of this run."""
    named = os.environ.get(VARIABLE)
    return named.split(",") if named else [OLDEST, NEWEST]


def python_of(release: str) -> str:
    """Returns the interpreter with a release. Raises FileNotFoundError naming what makes it."""
    if release == NEWEST:
        return sys.executable
    python = ROOT / f".venv-{release}" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python}: run `npm run setup`")
    return str(python)
