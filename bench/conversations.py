"""Owns the measuring of many conversations: each round asks the next turn of every conversation, in random order.

Then single prompts are computed, and asked again once the engine's own cache is empty. Prints one JSON line: tokens
asked, cached and generated, seconds, the sidecar's counters of drops, and the first tokens of single prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

from never_slower import status_of
from vllm import LLM, SamplingParams

BLOCK_TOKENS = 32
VOCAB = 512
CHUNK = 2048
SEED = 1
SAVED_S = 60.0


def transfer_of(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the connector's configuration; None for an engine alone."""
    if options.socket is not None:
        return {
            "kv_connector": "TierKVConnector",
            "kv_connector_module_path": "tierkv.connectors.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"socket": options.socket, "autostart": False},
        }
    if options.offload_bytes > 0:
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CopyingSpec",
                "spec_module_path": "cpu_offload",
                "cpu_bytes_to_use": options.offload_bytes,
            },
        }
    return None


class Singles:
    """Asks prompts one after another, computed and then restored. `short`: a prompt of one block."""

    def __init__(self, engine: LLM, socket: str | None, short: list[int]) -> None:
        self._engine = engine
        self._socket = socket
        self._short = short
        self._connector = engine.llm_engine.engine_core.engine_core.scheduler.connector
        self._forget()

    def _ask(self, prompt: list[int]) -> tuple[float, int]:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        asked: Any = [{"prompt_token_ids": prompt}]
        (output,) = self._engine.generate(asked, params, use_tqdm=False)
        return time.perf_counter() - began, output.num_cached_tokens or 0

    def _until(self, holds: Any, what: str) -> None:
        until = time.monotonic() + SAVED_S
        while not holds():
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {SAVED_S} s")
            self._engine.llm_engine.step()

    def _is_saved(self) -> bool:
        if self._socket is None:
            return True
        is_queued = status_of(self._socket)["saves"]["queuedBlocks"] > 0
        return not is_queued and not self._connector.has_pending_push_work()

    def _forget(self) -> None:
        """Wait until all is saved, empty the engine's own cache, and let a request's steps look at its weights."""
        self._ask(self._short)
        self._until(self._is_saved, "all blocks are saved")
        self._until(self._engine.reset_prefix_cache, "no block is in use")
        while True:
            self._ask(self._short)
            is_ours = self._socket is not None
            if not is_ours or not self._connector.scheduler_side._generations.is_unsure:  # noqa: SLF001
                return

    def measure(self, prompt: list[int]) -> dict[str, float]:
        """Return the seconds to the first token computed and restored, and the tokens restored."""
        computed, _ = self._ask(prompt)
        self._forget()
        restored, cached = self._ask(prompt)
        self._forget()
        return {"computed": computed, "restored": restored, "cached": cached}


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket")
    parser.add_argument("--offload-bytes", type=int, default=0)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--asked-tokens", type=int, required=True)
    parser.add_argument("--answer-tokens", type=int, required=True)
    parser.add_argument("--singles", type=int, required=True)
    options = parser.parse_args()
    longest = options.turns * (options.asked_tokens + options.answer_tokens)
    engine = LLM(
        model=options.model,
        dtype="bfloat16",
        max_model_len=longest,
        max_num_batched_tokens=CHUNK,
        kv_cache_memory_bytes=options.kv_bytes,
        block_size=BLOCK_TOKENS,
        enforce_eager=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        kv_transfer_config=transfer_of(options),
    )
    draw = random.Random(SEED)
    params = SamplingParams(
        temperature=0, max_tokens=options.answer_tokens, ignore_eos=True, detokenize=False
    )

    def said(tokens: int) -> list[int]:
        return draw.choices(range(VOCAB), k=tokens)

    engine.generate([{"prompt_token_ids": said(options.asked_tokens)}], params, use_tqdm=False)
    conversations = [said(options.asked_tokens) for _ in range(options.conversations)]
    rounds: list[dict[str, float]] = []
    for _ in range(options.turns):
        order = draw.sample(range(len(conversations)), k=len(conversations))
        prompts: Any = [{"prompt_token_ids": conversations[which]} for which in order]
        began = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        asked = sum(len(conversations[which]) for which in order)
        rounds.append({"seconds": seconds, "cached": cached, "asked": asked})
        for which, output in zip(order, outputs, strict=True):
            conversations[which] += [*output.outputs[0].token_ids, *said(options.asked_tokens)]
    counters = status_of(options.socket)["counters"] if options.socket is not None else {}
    singles = []
    if options.singles:
        alone = Singles(engine, options.socket, said(BLOCK_TOKENS))
        tokens = longest - options.answer_tokens
        singles = [alone.measure(said(tokens)) for _ in range(options.singles)]
    result = {
        "rounds": rounds,
        "singles": singles,
        "generated": options.turns * options.conversations * options.answer_tokens,
        "dropped": {name: count for name, count in counters.items() if "dropped" in name and count},
    }
    engine.llm_engine.engine_core.shutdown()  # prints as it ends, and the result is the last line
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
