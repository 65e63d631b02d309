"""Owns the measuring of a link that carries part of all saves: conversations and shared texts among other prompts.

Prints one JSON line: the share of the second round's repeated tokens that was restored; drops of the first round.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from never_slower import status_of
from no_compute import VOCAB, make_engine, params_of
from vllm import LLM

BLOCK_TOKENS = 32
CHUNK = 2048
LONGEST = 16_384
AT_ONCE = 8
TOKEN_US = 200.0
ANSWER = 32
TURN, TURNS = 512, 4
TEXT, ASKED = 2048, 256
ONCE = 1536


def options_of() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--kv-bytes", type=int, required=True)
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--texts", type=int, required=True)
    parser.add_argument("--once", type=int, required=True)
    parser.add_argument("--as-they-come", type=int, required=True)
    return parser.parse_args()


def engine_of(options: argparse.Namespace) -> LLM:
    """Start the engine; with `as_they_come` no prompt counts as returning."""
    engine = make_engine(
        options.model,
        options.socket,
        kv_bytes=options.kv_bytes,
        chunk=CHUNK,
        longest=LONGEST,
        block=BLOCK_TOKENS,
        token_us=TOKEN_US,
    )
    connector = engine.llm_engine.engine_core.engine_core.scheduler.connector
    if options.as_they_come:
        visits = connector.scheduler_side._saves.visits  # noqa: SLF001
        visits.again = lambda *_: False
        visits.goes_on = lambda _: False
    return engine


def main() -> None:
    """Print the result."""
    options = options_of()
    engine = engine_of(options)
    draw = random.Random(1)

    def said(tokens: int) -> list[int]:
        return draw.choices(range(VOCAB), k=tokens)

    def ask(prompts: list[list[int]]) -> tuple[int, list[list[int]]]:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = engine.generate(asked, params_of(ANSWER), use_tqdm=False)
        cached = sum(output.num_cached_tokens or 0 for output in outputs)
        return cached, [list(output.outputs[0].token_ids) for output in outputs]

    ask([said(BLOCK_TOKENS * 4)])
    time.sleep(1)  # until the namespace is known and slots are granted
    talks = [said(TURN) for _ in range(options.conversations)]
    texts = [said(TEXT) for _ in range(options.texts)]

    def prompt_of(kind: str, at: int) -> list[int]:
        if kind == "once":
            return said(ONCE)
        return talks[at] if kind == "talk" else texts[at] + said(ASKED)

    began = time.monotonic()
    computed = 0
    for _ in range(TURNS):
        # Each conversation's next turn, a new question about each text, and a share of the one-time prompts.
        round_: list[tuple[str, int]] = [("talk", at) for at in range(len(talks))]
        round_ += [("text", at) for at in range(len(texts))]
        round_ += [("once", 0)] * (options.once // TURNS)
        draw.shuffle(round_)
        for first in range(0, len(round_), AT_ONCE):
            part = round_[first : first + AT_ONCE]
            prompts = [prompt_of(kind, at) for kind, at in part]
            cached, answers = ask(prompts)
            computed += sum(map(len, prompts)) - cached
            for (kind, at), answer in zip(part, answers, strict=True):
                if kind == "talk":
                    talks[at] += answer + said(TURN)
    seconds = time.monotonic() - began
    first = status_of(options.socket)["counters"]
    engine.reset_prefix_cache()
    while status_of(options.socket)["saves"]["queuedBlocks"]:
        time.sleep(0.05)
    saved = status_of(options.socket)["counters"]
    talked, _ = ask(talks)
    read, _ = ask([text + said(ASKED) for text in texts])
    whole = [BLOCK_TOKENS * ((len(talk) - TURN) // BLOCK_TOKENS) for talk in talks]
    counters = status_of(options.socket)["counters"]
    result = {
        "seconds": seconds,
        "computed": computed,
        "savedBytes": saved["bytes_saved"],
        "talks": talked / sum(whole),
        "texts": read / (len(texts) * TEXT),
        "hits": (talked + read) / (sum(whole) + len(texts) * TEXT),
        "dropped": {name: n for name, n in counters.items() if "dropped" in name and n},
        "shim": {name: n for name, n in counters.items() if "shim_" in name and n},
        "first": first["bytes_saved"],
    }
    engine.llm_engine.engine_core.shutdown()  # prints as it ends, and the result is the last line
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
