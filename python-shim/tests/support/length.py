"""Owns the length of tests that take any number of cases: short for every change, whole in a nightly run."""

import os

#: As in test/engine/harness/releases.py; .ci/lib/stages.js sets it.
IS_LONG = bool(os.environ.get("TIERKV_TEST_LONG"))
SHORTER = 20


def cases(whole: int) -> int:
    """Returns the number of cases: `whole` in a nightly run, a twentieth for every change."""
    return whole if IS_LONG else whole // SHORTER
