"""Owns the measuring of many requests of few prompts that lie outside the engine, which computes nothing.

Prints one JSON line: for each round, count and shape the blocks taken, loads, steps with tokens and times to first
tokens, in seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

from never_slower import status_of
from no_compute import VOCAB, make_engine
from vllm import SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group

BLOCK_TOKENS = 32
CHUNK = 2048
#: Tokens of a request's own end: less than a block.
END_TOKENS = 16
ANSWER_TOKENS = 2
WAIT_S = 120.0
#: Answers to one request in the shape `n`.
ANSWERS = 8
#: Prefixes that lie outside the engine: all are asked in the shape `eight`, one in the others.
PREFIXES = 8
SHAPES = ("one", "eight", "n")


class Prefixes:
    """An engine and its connector, if any; counts what its scheduler does."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        offloading = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CopyingSpec",
                "spec_module_path": "cpu_offload",
                "cpu_bytes_to_use": options.offload_bytes,
            },
        }
        llm = make_engine(
            options.model,
            options.socket,
            kv_bytes=options.kv_bytes,
            chunk=CHUNK,
            longest=options.tokens + 2 * BLOCK_TOKENS,
            block=BLOCK_TOKENS,
            token_us=options.token_us,
            connector=offloading if options.offload_bytes else None,
        )
        self._engine = llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._draw = random.Random(1)
        self._number = 0
        self.blocks = self.loads = self.steps = 0
        self._count()
        self._run([(self._said(4 * BLOCK_TOKENS), 1)])
        self._wait(self._is_ready)
        self._prefixes = [self._said(options.tokens) for _ in range(PREFIXES)]
        self._run([(prefix, 1) for prefix in self._prefixes])

    def _is_ready(self) -> bool:
        """Tell whether blocks can be saved and restored."""
        if self._options.socket is None:
            return True
        halves = get_kv_transfer_group().worker_side, self._core.scheduler.connector.scheduler_side
        return bool(halves[0].status()["credits"]) and halves[1]._naming.is_complete  # noqa: SLF001

    def _count(self) -> None:
        pool = self._core.scheduler.kv_cache_manager.block_pool
        take, step = pool.get_new_blocks, self._core.step_fn

        def taken(count: int, *more: Any, **others: Any) -> Any:
            found = take(count, *more, **others)
            self.blocks += len(found)
            return found

        def stepped() -> Any:
            outputs, has_forward = step()
            self.steps += has_forward
            return outputs, has_forward

        pool.get_new_blocks, self._core.step_fn = taken, stepped
        connector = self._core.scheduler.connector
        if connector is None:
            return
        admit = connector.update_state_after_alloc

        def admitted(request: Any, blocks: Any, external: int) -> None:
            self.loads += external > 0
            admit(request, blocks, external)

        connector.update_state_after_alloc = admitted

    def _said(self, tokens: int) -> list[int]:
        return self._draw.choices(range(VOCAB), k=tokens)

    def _wait(self, holds: Any) -> None:
        until = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > until:
                raise RuntimeError("the engine's connector did not get ready in time")
            self._engine.step()
            time.sleep(0.01)

    def _run(self, asked: list[tuple[list[int], int]]) -> list[float]:
        """Ask all prompts at once, each for so many answers; return the seconds to each answer's first token."""
        began = time.perf_counter()
        for prompt, answers in asked:
            self._number += 1
            params = SamplingParams(
                n=answers,
                temperature=0 if answers == 1 else 1,
                max_tokens=ANSWER_TOKENS,
                ignore_eos=True,
                detokenize=False,
            )
            self._engine.add_request(str(self._number), {"prompt_token_ids": prompt}, params)
        first: dict[tuple[str, int], float] = {}
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter() - began
            for output in outputs:
                for answer in output.outputs:
                    if answer.token_ids:
                        first.setdefault((output.request_id, answer.index), now)
        return list(first.values())

    def _forget(self) -> None:
        """Wait until all is saved, then empty the engine's own cache, and let it look at its weights."""
        socket = self._options.socket
        connector = self._core.scheduler.connector
        if socket is not None:

            def is_saved() -> bool:
                pending = connector.has_pending_push_work()
                return not pending and not status_of(socket)["saves"]["queuedBlocks"]

            self._wait(is_saved)
        self._wait(self._engine.reset_prefix_cache)
        while True:  # with steps of a request, as the weights are looked at then
            self._run([(self._said(BLOCK_TOKENS), 1)])
            if socket is None or not connector.scheduler_side._generations.is_unsure:  # noqa: SLF001
                return

    def measure(self, at: int, count: int, shape: str) -> dict[str, Any]:
        """Ask `count` answers at once; `at`: number of the round."""
        asked_of = self._prefixes if shape == "eight" else [self._prefixes[at % PREFIXES]]
        answers = ANSWERS if shape == "n" else 1
        asked = [
            (asked_of[number % len(asked_of)] + self._said(END_TOKENS), answers)
            for number in range(count // answers)
        ]
        self._forget()
        self.blocks = self.loads = self.steps = 0
        first = self._run(asked)
        counted = {"blocks": self.blocks, "loads": self.loads, "steps": self.steps}
        return {"count": count, "shape": shape, **counted, "first": first}

    def rounds(self) -> list[dict[str, Any]]:
        """Measure all counts and shapes in each round, after a round that warms both sides up."""
        for shape in SHAPES:
            self.measure(0, PREFIXES, shape)
        return [
            self.measure(at, count, shape)
            for at in range(self._options.rounds)
            for count in self._options.counts
            for shape in SHAPES
        ]

    def end(self, cells: list[dict[str, Any]]) -> None:
        """Print the cells, once the engine has ended."""
        self._engine.engine_core.shutdown()  # prints as it ends, and the result is the last line
        sys.stdout.write(json.dumps({"cells": cells}) + "\n")


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket")
    parser.add_argument("--offload-bytes", type=int, default=0)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--token-us", type=float, required=True)
    parser.add_argument("--counts", type=json.loads, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    engine = Prefixes(options)
    engine.end(engine.rounds())


if __name__ == "__main__":
    main()
