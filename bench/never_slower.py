"""Owns the measuring of first tokens over shaped links: one engine with tierKV, one without, same prompts and cores.

Prints one JSON line: times of both engines for each link, length and round, and for each change of the link.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from tierkv.connectors.vllm.link.frames import FrameDecoder, encode

BLOCK_TOKENS = 128
VOCAB = 256
MODEL_LEN = 4096
#: Seconds until the engines' threads stop spinning.
SETTLE_S = 0.3
IDLE_S = 60.0
#: Seconds above LINK_STALE_MS of the sidecar.
STALE_S = 5.5
#: Tokens of a prompt; two such prompts teach the sidecar a link before it is measured.
WARM_TOKENS = 500
#: From, to (Mb/s), and seconds after the request until the link changes; None: before it.
CHANGES = [(100, 10, 0.2), (1000, 10, None), (10, 1000, None)]

Cell = dict[str, Any]


def serve(options: argparse.Namespace) -> None:
    """Answers prompts, one line each: {"prompt", "reset"} -> {"seconds"}; runs in a process of its own."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - the parent needs none of it

    transfer = {
        "kv_connector": "TierKVConnector",
        "kv_connector_module_path": "tierkv.connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"socket": options.socket, "autostart": False},
    }
    engine = LLM(
        model=options.model,
        dtype=options.dtype,
        max_model_len=options.model_len,
        block_size=BLOCK_TOKENS,
        enforce_eager=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        kv_transfer_config=transfer if options.role == "with" else None,
    ).llm_engine
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    say = os.fdopen(options.answers, "w", buffering=1)
    say.write(json.dumps({"ready": True}) + "\n")
    for number, line in enumerate(sys.stdin):
        question = json.loads(line)
        while question["reset"] and not engine.reset_prefix_cache():
            engine.step()
        name = f"{options.role}-{number}"
        started = time.perf_counter()
        engine.add_request(name, {"prompt_token_ids": question["prompt"]}, params)
        answer: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                answer = list(output.outputs[0].token_ids)
        seconds = time.perf_counter() - started
        say.write(json.dumps({"name": name, "seconds": seconds, "answer": answer}) + "\n")


class Child:
    """An engine in a process of its own."""

    def __init__(self, role: str, argv: list[str]) -> None:
        ours, theirs = os.pipe()
        command = [sys.executable, __file__, *argv, "--role", role, "--answers", str(theirs)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=sys.stderr, pass_fds=(theirs,), text=True
        )
        os.close(theirs)
        self._answers = os.fdopen(ours)

    def heard(self) -> Any:
        """Returns the engine's next line, of which the first reports readiness."""
        line = self._answers.readline()
        if not line:
            raise RuntimeError("an engine ended")
        return json.loads(line)

    def ask(self, prompt: list[int], *, reset: bool = True) -> Any:
        """Returns the seconds to the first token, that token, and the request's name."""
        time.sleep(SETTLE_S)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": prompt, "reset": reset}) + "\n")
        self._process.stdin.flush()
        return self.heard()

    def end(self) -> None:
        """Kills the process, because its exit handlers take seconds."""
        self._process.kill()
        self._process.wait()


class Bench:
    """Both engines, and the link between the sidecar of one and its vault."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._mbit = 0
        self._draw = random.Random(options.seed)
        self._warm: list[list[list[int]]] = []
        argv = ["--model", options.model, "--dtype", options.dtype, "--socket", options.socket]
        self.ours, self.plain = Child("with", argv), Child("plain", argv)
        self.ours.heard()
        self.plain.heard()

    def prompt(self, tokens: int) -> list[int]:
        """Returns a new random prompt."""
        return self._draw.choices(range(VOCAB), k=tokens)

    def shape(self, mbit: int, *, waits: bool = True) -> None:
        """Shapes both directions of the link; 0: no limit. `waits`: until the sidecar's estimate of it is stale."""
        is_faster = self._mbit > 0 and (mbit == 0 or mbit > self._mbit)
        self._mbit = mbit
        # A slow link is tried again only after its estimate is stale.
        time.sleep(STALE_S if is_faster and waits else 0)
        options = self._options
        inside = ["ip", "netns", "exec", options.netns]
        for prefix, device in (([], options.here), (inside, options.there)):
            tc = [*prefix, "tc", "qdisc"]
            if mbit == 0:
                quiet = subprocess.DEVNULL
                subprocess.run([*tc, "del", "dev", device, "root"], check=False, stderr=quiet)
                continue
            # The burst holds 2 ms of traffic, because with less the timers would limit and not the rate.
            burst = max(16_000, mbit * 250)
            limit = ["tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "50ms"]
            subprocess.run([*tc, "replace", "dev", device, "root", *limit], check=True)

    def wait_saved(self) -> None:
        """Waits until the sidecar has sent all saves."""
        deadline = time.monotonic() + IDLE_S
        time.sleep(SETTLE_S)
        while status_of(self._options.socket)["saves"]["queuedBlocks"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the sidecar still saves after {IDLE_S} s")
            time.sleep(0.05)

    def seed(self, cells: list[Cell], *, misses: bool = False) -> None:
        """Has every prompt computed and stored over the open link; `misses`: the plain engine computes it, too."""
        self.shape(0)
        for cell in cells:
            heard = self.ours.ask(cell["prompt"])
            cell["miss"] = heard["seconds"]
            self.wait_saved()
            if misses:
                cell["beside"] = self.plain.ask(cell["prompt"])["seconds"]

    def make_known(self) -> None:
        """Lets the sidecar learn the current link."""
        for prompt in self._warm.pop():
            self.ours.ask(prompt)
            self.wait_saved()

    def measure(self, cell: Cell, before: Any, change: tuple[int, float] | None = None) -> Any:
        """Asks the tierKV engine, then the plain one; `before` is the plain engine's earlier reply for as many tokens.

        `change`: rate (Mb/s) and delay (s) of a link change during the request. Returns the plain engine's last reply.
        """
        prompt = cell.pop("prompt")
        timer = None
        if change is not None:
            timer = threading.Timer(
                SETTLE_S + change[1], lambda: self.shape(change[0], waits=False)
            )
            timer.start()
        heard = self.ours.ask(prompt)
        if timer is not None:
            timer.join()
        after = self.plain.ask(prompt)
        cell["own"] = self.plain.ask(prompt, reset=False)["seconds"]
        cell["first"], cell["second"] = before["seconds"], after["seconds"]
        cell["with"], cell["name"] = heard["seconds"], heard["name"]
        cell["same"] = heard["answer"] == after["answer"]
        return after

    def run(self, links: list[int], rounds: dict[int, int], *, changes: bool) -> dict[str, Any]:
        """Measures all links and lengths (`rounds`: prompts by their tokens), then the changes."""
        longest = max(rounds)
        for tokens in [*rounds, longest]:  # first passes are slower
            warm = self.prompt(tokens)
            self.ours.ask(warm)
            self.plain.ask(warm)
        cells = [
            {"mbit": mbit, "tokens": tokens, "prompt": self.prompt(tokens)}
            for mbit in links
            for tokens, count in rounds.items()
            for _ in range(count)
        ]
        changed: list[Cell] = [
            {"from": a, "mbit": b, "after": s, "tokens": longest, "prompt": self.prompt(longest)}
            for a, b, s in (CHANGES if changes else [])
        ]
        passes = len(links) + len(changed)
        self._warm = [[self.prompt(WARM_TOKENS) for _ in range(2)] for _ in range(passes)]
        self.seed([*cells, *changed], misses=bool(self._options.misses))
        self.seed([{"prompt": prompt} for prompts in self._warm for prompt in prompts])
        for mbit in links:
            self.shape(mbit)
            self.make_known()
            for tokens in rounds:
                heard = self.plain.ask(self.prompt(tokens))
                for cell in cells:
                    if (cell["mbit"], cell["tokens"]) == (mbit, tokens):
                        heard = self.measure(cell, heard)
        for cell in changed:
            self.shape(cell["from"])
            self.make_known()
            before = self.plain.ask(self.prompt(longest))
            if cell["after"] is None:
                self.shape(cell["mbit"], waits=False)
                self.measure(cell, before)
            else:
                self.measure(cell, before, (cell["mbit"], cell["after"]))
        self.shape(0, waits=False)
        counters = status_of(self._options.socket)["counters"]
        return {"cells": cells, "changes": changed, "counters": counters}

    def end(self) -> None:
        """Ends both engines."""
        self.ours.end()
        self.plain.end()


def status_of(path: str) -> Any:
    """Returns the sidecar's status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(5)
        link.connect(path)
        link.sendall(encode({"t": "hello", "protocol": 2, "role": "status"}))
        link.sendall(encode({"t": "status"}))
        decoder = FrameDecoder()
        while data := link.recv(1 << 16):
            for frame in decoder.feed(data):
                if frame["t"] == "status_reply":
                    return frame["status"]
    raise ConnectionError(f"{path}: the sidecar ended the connection")


def main() -> None:
    """Reads the command line and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--role", choices=("with", "plain"))
    parser.add_argument("--answers", type=int)
    parser.add_argument("--netns")
    parser.add_argument("--here")
    parser.add_argument("--there")
    parser.add_argument("--links", type=lambda text: [int(mbit) for mbit in text.split(",")])
    parser.add_argument("--rounds", type=json.loads)
    parser.add_argument("--changes", type=int)
    parser.add_argument("--misses", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model-len", type=int, default=MODEL_LEN)
    options = parser.parse_args()
    if options.role is not None:
        serve(options)
        return
    bench = Bench(options)
    try:
        rounds = {int(tokens): count for tokens, count in options.rounds.items()}
        result = bench.run(options.links, rounds, changes=bool(options.changes))
    finally:
        bench.end()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
