"""Owns the measuring of many simultaneous restores, and of a short one beside a long one, on an engine without compute.

Prints one JSON line: seconds of our calls by step, first tokens, tokens restored, exceptions counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

from engine_steps import Meter
from never_slower import status_of
from no_compute import VOCAB, make_engine, params_of

CHUNK = 2048
BLOCK_TOKENS = 32
TOKEN_US = 20.0
SAVED_S = 120.0


class Crowd:
    """An engine, and the requests made of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._socket = options.socket
        self._llm = make_engine(
            options.model,
            options.socket,
            kv_bytes=options.kv_bytes,
            chunk=CHUNK,
            longest=options.longest + BLOCK_TOKENS,
            block=BLOCK_TOKENS,
            token_us=TOKEN_US,
        )
        self.engine = self._llm.llm_engine
        self.meter = Meter(self.engine)
        self.draw = random.Random(1)
        self._asked = 0
        self.meter.wait_for_credits()
        self.meter.run([self.said(BLOCK_TOKENS * 4)], 1)

    def said(self, tokens: int) -> list[int]:
        return self.draw.choices(range(VOCAB), k=tokens)

    def keep(self, prompts: list[list[int]]) -> None:
        """Have each prompt computed and saved, then empty the engine's cache."""
        connector = self.engine.engine_core.engine_core.scheduler.connector
        until = time.monotonic() + SAVED_S
        for prompt in prompts:
            self.meter.run([prompt], 1)
            while (
                connector.has_pending_push_work()
                or status_of(self._socket)["saves"]["queuedBlocks"]
            ):
                if time.monotonic() > until:
                    raise RuntimeError("prompts were not saved in time")
                self.engine.step()
        self.meter.forget_prefixes()

    def first_token(self, prompts: list[list[int]]) -> float:
        """Ask all prompts, the last one a moment later; return the seconds until its answer begins."""
        names = [f"first-{self._asked + number}" for number in range(len(prompts))]
        self._asked += len(prompts)
        asked_at = 0.0
        for name, prompt in zip(names, prompts, strict=True):
            asked_at = time.perf_counter()
            self.engine.add_request(name, {"prompt_token_ids": prompt}, params_of(1))
            if name != names[-1]:
                until = time.perf_counter() + HEAD_START_S
                while time.perf_counter() < until:
                    self.engine.step()
        seconds = 0.0
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.request_id.startswith(names[-1]) and not seconds:
                    seconds = time.perf_counter() - asked_at
        return seconds

    def end(self, result: dict[str, Any]) -> None:
        """Print a result with the counters of both sides."""
        counters = status_of(self._socket)["counters"]
        ours = {**self.meter.scheduler.counters.snapshot(), **self.meter.worker.counters.snapshot()}
        result["errors"] = {
            name: n for name, n in ours.items() if "error" in name or name == "turned_off"
        }
        result["dropped"] = {name: n for name, n in counters.items() if "dropped" in name and n}
        result["restored"] = ours.get("tokens_restored", 0)
        self.engine.engine_core.shutdown()  # prints as it ends, and the result is the last line
        sys.stdout.write(json.dumps(result) + "\n")


#: Seconds that a long restore runs before a short one arrives.
HEAD_START_S = 0.1


def at_once(crowd: Crowd, options: argparse.Namespace) -> dict[str, Any]:
    """Ask many prompts at once; the vault holds all but their last tokens."""
    kept = [crowd.said(options.tokens) for _ in range(options.kept)]
    crowd.keep(kept)
    restored = crowd.meter.scheduler.counters.get("tokens_restored")
    prompts = [
        kept[at % len(kept)] + crowd.said(BLOCK_TOKENS // 2) for at in range(options.prompts)
    ]
    crowd.draw.shuffle(prompts)
    crowd.meter.restart()
    began = time.perf_counter()
    crowd.meter.run(prompts, 1)
    seconds = time.perf_counter() - began
    report = crowd.meter.report()
    return {
        "seconds": seconds,
        "asked": options.prompts * options.tokens,
        "again": crowd.meter.scheduler.counters.get("tokens_restored") - restored,
        **{
            name: report[name]
            for name in ("steps", "waits", "cpu", "waitsCpu", "arrivals", "slowest")
        },
    }


def beside(crowd: Crowd, options: argparse.Namespace) -> dict[str, Any]:
    """Time the first token of short prompts alone and beside a long one; two long ones alternate in the arena."""
    long = [crowd.said(options.longest) for _ in range(2)]
    short = [crowd.said(options.tokens) for _ in range(2 * options.prompts)]
    crowd.keep([*short, *long])
    alone, together = [], []
    for at in range(options.prompts):
        alone.append(crowd.first_token([short[2 * at]]))
        crowd.meter.forget_prefixes()
        together.append(crowd.first_token([long[at % 2], short[2 * at + 1]]))
        crowd.meter.forget_prefixes()
    asked = options.prompts * (options.longest + 2 * options.tokens)
    return {"alone": alone, "together": together, "asked": asked}


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--longest", type=int, required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--kept", type=int, default=0)
    options = parser.parse_args()
    crowd = Crowd(options)
    crowd.end(at_once(crowd, options) if options.kept else beside(crowd, options))


if __name__ == "__main__":
    main()
