"""Owns the measuring of many simultaneous requests of growing conversations, by an engine that computes nothing.

Several clients ask each conversation's turn at once; new conversations replace finished ones until the time
is over. Prints one JSON line: for each round the seconds, tokens asked and cached, and counters of losses.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

from never_slower import status_of
from no_compute import VOCAB, make_engine, params_of
from vllm.distributed.kv_transfer import get_kv_transfer_group

BLOCK_TOKENS = 32
CHUNK = 2048
CREDITS_S = 60.0


class Asker:
    """An engine, and conversations that several clients continue."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._engine = make_engine(
            options.model,
            options.socket,
            kv_bytes=options.kv_bytes,
            chunk=CHUNK,
            longest=options.turns * (options.asked_tokens + options.answer_tokens),
            block=BLOCK_TOKENS,
            token_us=options.token_us,
        )
        self._draw = random.Random(1)
        self._params = params_of(options.answer_tokens)
        self._engine.generate([self._prompt(self._said())], self._params, use_tqdm=False)
        if options.socket is not None:
            self._wait_for_credits()

    @staticmethod
    def _wait_for_credits() -> None:
        """Wait until the sidecar has granted slots, because nothing is saved before."""
        worker = get_kv_transfer_group().worker_side
        until = time.monotonic() + CREDITS_S
        while not worker.status()["credits"]:
            if time.monotonic() > until:
                raise RuntimeError("the sidecar granted no slots")
            time.sleep(0.05)

    def _said(self) -> list[int]:
        return self._draw.choices(range(VOCAB), k=self._options.asked_tokens)

    @staticmethod
    def _prompt(tokens: list[int]) -> Any:
        return {"prompt_token_ids": tokens}

    def _round(self, conversations: list[list[int]]) -> dict[str, float]:
        """Ask the next turn of each conversation, by all clients at once, in random order."""
        order = [at for at in range(len(conversations)) for _ in range(self._options.clients)]
        self._draw.shuffle(order)
        began = time.perf_counter()
        prompts = [self._prompt(conversations[at]) for at in order]
        outputs = self._engine.generate(prompts, self._params, use_tqdm=False)
        seconds = time.perf_counter() - began
        result = {
            "seconds": seconds,
            "cached": sum(output.num_cached_tokens or 0 for output in outputs),
            "asked": sum(len(conversations[at]) for at in order),
        }
        answers = {
            at: output.outputs[0].token_ids for at, output in zip(order, outputs, strict=True)
        }
        for at, answer in answers.items():
            conversations[at] += [*answer, *self._said()]
        return result

    def passes(self) -> list[list[dict[str, float]]]:
        """Ask all turns of new conversations again and again, until the time is over; one pass at least."""
        until = time.monotonic() + self._options.seconds
        passes: list[list[dict[str, float]]] = []
        while not passes or time.monotonic() < until:
            conversations = [self._said() for _ in range(self._options.conversations)]
            rounds = [self._round(conversations) for _ in range(self._options.turns)]
            passes.append(rounds)
            hits = sum(each["cached"] for each in rounds) / sum(each["asked"] for each in rounds)
            seconds = sum(each["seconds"] for each in rounds)
            sys.stderr.write(f"pass {len(passes)}: {seconds:.1f} s, {hits:.3f} not computed\n")
        return passes

    def end(self) -> None:
        """Stop the engine."""
        self._engine.llm_engine.engine_core.shutdown()


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket")
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--asked-tokens", type=int, required=True)
    parser.add_argument("--answer-tokens", type=int, required=True)
    parser.add_argument("--token-us", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    asker = Asker(options)
    passes = asker.passes()
    counters = status_of(options.socket)["counters"] if options.socket is not None else {}
    result = {
        "passes": passes,
        "dropped": {name: count for name, count in counters.items() if "dropped" in name and count},
    }
    asker.end()  # prints as it ends, and the result is the last line
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
