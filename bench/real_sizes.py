"""Owns the measuring of prompts with a published KV geometry: blocks saved at the first visit, and tokens restored.

Prints one JSON line: blocks, blocks saved, tokens restored, seconds of each visit and of short restores beside
a long one, counters of losses.
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

BLOCK_TOKENS = 128
VOCAB = 512
SAVED_S = 180.0
#: A short prompt arrives this many seconds after a long one, whose restore takes longer.
BESIDE_TOKENS = 1027
BESIDE_APART_S = 0.1
BESIDE_ROUNDS = 5


def saves(engine: LLM, socket: str) -> tuple[int, float]:
    """Step as a server does until no save waits; return the number of stored blocks, and the seconds."""
    connector = engine.llm_engine.engine_core.engine_core.scheduler.connector
    began = time.monotonic()
    while time.monotonic() - began < SAVED_S:
        if connector.has_pending_push_work():
            engine.llm_engine.step()
            continue
        status = status_of(socket)
        if status["saves"]["queuedBlocks"] == 0:
            break
        time.sleep(0.02)
    return int(status_of(socket)["counters"]["blocks_saved"]), time.monotonic() - began


def visit(engine: LLM, prompts: list[list[int]]) -> dict[str, Any]:
    """Ask for one token of every prompt at once."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    began = time.perf_counter()
    outputs = engine.generate(asked, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "cached": sum(output.num_cached_tokens or 0 for output in outputs),
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
    }


def answered(engine: LLM, texts: list[list[int]], apart_s: float) -> list[float]:
    """Ask for one token of each, `apart_s` between them; return the seconds from each request to its answer."""
    server = engine.llm_engine
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    asked: dict[str, float] = {}
    took: dict[str, float] = {}
    while len(took) < len(texts):
        now = time.perf_counter()
        if len(asked) < len(texts) and now >= max(asked.values(), default=now - apart_s) + apart_s:
            name = f"beside-{len(asked)}"
            asked[name] = now
            server.add_request(name, {"prompt_token_ids": texts[len(asked) - 1]}, params)
        for output in server.step():
            if output.finished:
                took[output.request_id] = time.perf_counter() - asked[output.request_id]
    return [took[name] for name in sorted(took)]


def beside(engine: LLM, socket: str, long: list[int], draw: random.Random) -> list[list[float]]:
    """Restore a short prompt alone and while a long one is restored, in turns; return [alone, beside, long] of each."""
    rounds = []
    for _ in range(BESIDE_ROUNDS):
        short = draw.choices(range(VOCAB), k=BESIDE_TOKENS)
        visit(engine, [short])
        saves(engine, socket)
        engine.reset_prefix_cache()
        (alone,) = answered(engine, [short], 0)
        engine.reset_prefix_cache()
        long_s, short_s = answered(engine, [long, short], BESIDE_APART_S)
        engine.reset_prefix_cache()
        rounds.append([alone, short_s, long_s])
    return rounds


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--chunk", type=int, required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--fixed-blocks", type=int, required=True)
    parser.add_argument("--beside", type=int, required=True)
    options = parser.parse_args()
    transfer = {
        "kv_connector": "TierKVConnector",
        "kv_connector_module_path": "tierkv.connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"socket": options.socket, "autostart": False},
    }
    engine = LLM(
        model=options.model,
        dtype="bfloat16",
        max_model_len=options.tokens + 64,
        max_num_batched_tokens=options.chunk,
        kv_cache_memory_bytes=options.kv_bytes,
        block_size=BLOCK_TOKENS if options.fixed_blocks else None,
        enforce_eager=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        kv_transfer_config=transfer,
    )
    draw = random.Random(1)
    warm = [draw.choices(range(VOCAB), k=BLOCK_TOKENS * 4 + 3)]
    visit(engine, warm)
    warm_saved, _ = saves(engine, options.socket)
    prompts = [draw.choices(range(VOCAB), k=options.tokens) for _ in range(options.prompts)]
    cold = visit(engine, prompts)
    saved, saved_s = saves(engine, options.socket)
    own = visit(engine, prompts)
    engine.reset_prefix_cache()
    began_ms = time.time() * 1e3
    restored = visit(engine, prompts)
    ended_ms = time.time() * 1e3
    rounds = beside(engine, options.socket, prompts[0], draw) if options.beside else []
    status = status_of(options.socket)
    (seen,) = status["engines"]
    # Blocks of states are not counted, because vLLM hands over only some.
    kept = [of["tokens"] for of in seen["groups"] if of["class"] == "kv"]
    blocks = options.prompts * sum((options.tokens - 1) // tokens for tokens in kept)
    is_plain = all(of["class"] == "kv" and of["tail"] == 0 for of in seen["groups"])
    result = {
        "blocks": blocks,
        "plain": is_plain,
        "saved": saved - warm_saved,
        "longest": seen["arena"]["longestTokens"],
        "arenaBytes": seen["arena"]["bytes"],
        "savedSeconds": saved_s,
        "cold": cold["seconds"],
        "own": own["seconds"],
        "restored": restored["seconds"],
        "restoring": [began_ms, ended_ms],
        "cached": [cold["cached"], own["cached"], restored["cached"]],
        "same": restored["tokens"] == cold["tokens"],
        "beside": rounds,
        "counters": {
            name: count for name, count in status["counters"].items() if "dropped" in name and count
        },
    }
    engine.llm_engine.engine_core.shutdown()  # prints as it ends, and the result is the last line
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
