"""Owns the measuring of prompts that pass through a smaller arena, by an engine that computes nothing.

Pages hold noise, whose sums are compared block by block. Prints one JSON line: seconds of the prompt computed, from
the engine's own cache and restored, tokens restored, blocks that differ; and of short requests that wait beside a
restore, with the blocks that its load held, times seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import torch
from never_slower import status_of
from no_compute import VOCAB, make_engine, params_of
from vllm import SamplingParams

BLOCK_TOKENS = 128
CHUNK = 8192
SAVED_S = 300.0
WARM_TOKENS = 8 * BLOCK_TOKENS + 3


class Prompts:
    """An engine whose pages hold noise."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._llm = make_engine(
            options.model,
            options.socket,
            kv_bytes=options.kv_bytes,
            chunk=CHUNK,
            longest=options.tokens + BLOCK_TOKENS,
            block=BLOCK_TOKENS,
            token_us=options.token_us,
        )
        self._engine = self._llm.llm_engine
        self._core = self._engine.engine_core.engine_core
        self._scheduler = self._core.scheduler
        self._pages = self._core.model_executor.driver_worker.worker.model_runner.kv_caches
        self._draw = random.Random(1)
        self._seed = 0
        self.spoil()

    def spoil(self) -> None:
        """Overwrite every page with new noise."""
        for pages in self._pages:
            self._seed += 1
            words = pages.view(torch.uint8).view(-1).view(torch.int64)
            chance = torch.Generator().manual_seed(self._seed)
            noise = torch.randint(-(2**62), 2**62, (1 << 20,), dtype=torch.int64, generator=chance)
            for at in range(0, words.numel(), noise.numel()):
                part = words[at : at + noise.numel()]
                part.copy_(noise[: part.numel()] * (at // noise.numel() * 2 + 1))

    def said(self, tokens: int) -> list[int]:
        return self._draw.choices(range(VOCAB), k=tokens)

    def ask(self, prompt: list[int]) -> tuple[float, int]:
        """Return the seconds to the first token, and the tokens found in caches."""
        began = time.perf_counter()
        (output,) = self._llm.generate([{"prompt_token_ids": prompt}], params_of(1), use_tqdm=False)
        return time.perf_counter() - began, output.num_cached_tokens or 0

    def sums(self, prompt: list[int]) -> list[int]:
        """Return a sum over each cached block of a prompt, all layers together."""
        from vllm.v1.request import Request  # noqa: PLC0415 - slow to import

        named = Request(
            "sums", prompt, SamplingParams(), None, block_hasher=self._core.request_block_hasher
        )
        manager = self._scheduler.kv_cache_manager
        count = self._scheduler.kv_cache_config.num_blocks
        rows = [pages.view(torch.uint8).view(count, -1).view(torch.int64) for pages in self._pages]
        found = []
        for block_hash in named.block_hashes:
            blocks = manager.block_pool.get_cached_block(block_hash, [0])
            if blocks is None:
                break
            found.append(
                sum(int(row[blocks[0].block_id].sum()) * (at + 1) for at, row in enumerate(rows))
            )
        return found

    def settle(self) -> None:
        """Wait until all is saved, and empty the engine's own cache."""
        until = time.monotonic() + SAVED_S
        while (
            self._scheduler.connector.has_pending_push_work()
            or (status_of(self._options.socket)["saves"]["queuedBlocks"])
        ):
            if time.monotonic() > until:
                raise RuntimeError(f"blocks still wait to be saved after {SAVED_S} s")
            self._engine.step()
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("a block is still in use")

    def beside(self, long: list[int] | None, count: int) -> dict[str, Any]:
        """Ask `count` short prompts and, before them, a long one; return their times and the blocks that loads held."""
        short = self._options.short
        params = params_of(1)
        began = time.perf_counter()
        if long is not None:
            self._engine.add_request("long", {"prompt_token_ids": long}, params)
        for number in range(count):
            text = {"prompt_token_ids": self.said(short)}
            self._engine.add_request(f"short-{number}", text, params)
        first: dict[str, float] = {}
        held, last = 0.0, began
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            held += self._loading_blocks() * (now - last)
            last = now
            for output in outputs:
                first.setdefault(output.request_id, now - began)
        return {
            "long": first.pop("long", None),
            "short": sorted(first.values()),
            "heldBlockSeconds": held,
        }

    def _loading_blocks(self) -> int:
        manager = self._scheduler.kv_cache_manager
        return sum(
            len(manager.get_block_ids(name)[0])
            for name, request in self._scheduler.requests.items()
            if request.status.name == "WAITING_FOR_REMOTE_KVS"
        )

    def shutdown(self) -> None:
        self._engine.engine_core.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket", required=True)
    for name in ("kv-bytes", "tokens", "rounds", "waiting", "short"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--token-us", type=float, required=True)
    options = parser.parse_args()
    engine = Prompts(options)
    warm = engine.said(WARM_TOKENS)
    for _ in range(3):
        engine.ask(warm)
        engine.settle()
    prompt = engine.said(options.tokens)
    cold, _ = engine.ask(prompt)
    own, own_cached = engine.ask(prompt)
    right = engine.sums(prompt)
    engine.settle()
    rounds = []
    for _ in range(options.rounds):
        engine.spoil()
        began_ms = time.time() * 1e3
        seconds, cached = engine.ask(prompt)
        wrong = sum(a != b for a, b in zip(right, engine.sums(prompt), strict=True))
        rounds.append({"seconds": seconds, "cached": cached, "wrong": wrong, "at": began_ms})
        engine.settle()
    alone = engine.beside(None, options.waiting)
    engine.settle()
    beside = engine.beside(prompt, options.waiting)
    status = status_of(options.socket)
    (seen,) = status["engines"]
    blocks = options.tokens // BLOCK_TOKENS
    result = {
        "cold": cold,
        "own": own,
        "ownCached": own_cached,
        "rounds": rounds,
        "alone": alone,
        "beside": beside,
        # Computing takes blocks as it goes: on average half of them.
        "computedBlockSeconds": cold * blocks / 2,
        "arenaBytes": seen["arena"]["bytes"],
        "windowed": status["counters"]["plans_windowed"],
    }
    engine.shutdown()  # prints as it ends, and the result is the last line
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
