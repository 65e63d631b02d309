"""Owns the measuring of doctor's forecasts and the ledger's counts: prompts computed, then restored.

Prints one JSON line: doctor's forecast before, the seconds to the first token for each length and round, and the
ledger's savings in those rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from typing import Any

from never_slower import SETTLE_S, VOCAB, Child, status_of

IDLE_S = 60.0
#: Rounds of each length before the forecast, in which the sidecar learns the engine's pace.
WARM_ROUNDS = 2


def wait_saved(socket: str) -> None:
    """Wait until the sidecar has sent all saves."""
    deadline = time.monotonic() + IDLE_S
    time.sleep(SETTLE_S)
    while status_of(socket)["saves"]["queuedBlocks"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the sidecar still saves after {IDLE_S} s")
        time.sleep(0.05)


def visits(engine: Child, socket: str, prompt: list[int]) -> tuple[float, float]:
    """Return the seconds to the first token of a prompt that is computed, and of the same one restored."""
    computed = engine.ask(prompt)["seconds"]
    wait_saved(socket)
    return computed, engine.ask(prompt)["seconds"]


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "dtype", "socket", "model-len"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--doctor", type=json.loads, help="its command line, as a JSON array")
    parser.add_argument("--lengths", type=json.loads)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    draw = random.Random(1)
    argv = ["--model", options.model, "--dtype", options.dtype, "--socket", options.socket]
    engine = Child("with", [*argv, "--model-len", options.model_len])
    try:
        engine.heard()
        for tokens in options.lengths * WARM_ROUNDS:
            visits(engine, options.socket, draw.choices(range(VOCAB), k=tokens))
        # The exit code is ignored, because it says only whether a restore helps.
        doctor = subprocess.run(options.doctor, check=False, capture_output=True, text=True)
        before = status_of(options.socket)["ledger"]
        cells: list[dict[str, Any]] = []
        for _ in range(options.rounds):
            for tokens in options.lengths:
                prompt = draw.choices(range(VOCAB), k=tokens)
                computed, restored = visits(engine, options.socket, prompt)
                cells.append({"tokens": tokens, "computed": computed, "restored": restored})
        wait_saved(options.socket)
        after = status_of(options.socket)["ledger"]
        ledger = {name: after[name] - before[name] for name in ("savedS", "restores")}
    finally:
        engine.end()
    result = {"doctor": json.loads(doctor.stdout), "cells": cells, "ledger": ledger}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
