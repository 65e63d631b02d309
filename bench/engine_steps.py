"""Owns the measuring of an engine's steps: a real vLLM in this process, timed with its sidecar running and stopped.

Prints one JSON line: seconds per step in our calls, without payload copies, for both states of the sidecar.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from typing import Any

from engine_calls import Watch
from lab.step_clock import clock_of
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group

BLOCK_TOKENS = 128
VOCAB = 256
WAIT_S = 60


def make_engine(options: argparse.Namespace) -> Any:
    """Returns an LLMEngine whose scheduler and worker live in this process."""
    transfer = {
        "kv_connector": "TierKVConnector",
        "kv_connector_module_path": "tierkv.connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"socket": options.socket, "autostart": False},
    }
    return LLM(
        model=options.model,
        dtype=options.dtype,
        max_model_len=4096,
        max_num_seqs=8,
        block_size=BLOCK_TOKENS,
        enforce_eager=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        kv_transfer_config=transfer,
    ).llm_engine


class Meter:
    """Steps an engine and notes each step's time in our calls."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        core = engine.engine_core.engine_core
        self.scheduler = core.scheduler.connector.scheduler_side
        self.worker = get_kv_transfer_group().worker_side
        self.clocks = (clock_of(self.scheduler), clock_of(self.worker))
        self.watch = Watch()
        self.watch.over(self.scheduler, {})
        self.watch.over(self.worker, self.worker._pages)  # noqa: SLF001 - copies are told apart
        self._number = 0
        self._has_forward = False
        self._note_forwards(core)
        self.restart()

    def _note_forwards(self, core: Any) -> None:
        """Notes whether each step ran the model, because a step that only waits for blocks is counted apart."""
        step = core.step_fn

        def watched() -> Any:
            outputs, self._has_forward = step()
            return outputs, self._has_forward

        core.step_fn = watched

    def restart(self) -> None:
        """Forgets all measurements."""
        self.steps: list[float] = []
        self.waits: list[float] = []
        self.cpu: list[float] = []
        self.waits_cpu: list[float] = []
        self.arrivals: list[float] = []
        self.controls: list[float] = []
        self.watch.restart()
        self.forward_s = 0.0
        for clock in self.clocks:
            clock.samples.clear()
            clock.max_s = clock.copy_s = 0.0
            clock.copy_bytes = 0

    def run(self, prompts: list[list[int]], answer_tokens: int) -> None:
        """Sends the prompts together and steps until all are answered."""
        params = SamplingParams(
            temperature=0, max_tokens=answer_tokens, ignore_eos=True, detokenize=False
        )
        for prompt in prompts:
            self._number += 1
            self._engine.add_request(str(self._number), {"prompt_token_ids": prompt}, params)
        self._take_arrivals()
        while self._engine.has_unfinished_requests():
            started = time.perf_counter()
            self._engine.step()
            if self._has_forward:
                self.forward_s += time.perf_counter() - started
            ours = sum(sample for clock in self.clocks for sample in clock.samples)
            (self.steps if self._has_forward else self.waits).append(ours)
            cpu, control = self.watch.take()
            (self.cpu if self._has_forward else self.waits_cpu).append(cpu)
            if self._has_forward:
                self.controls.append(control)
            for clock in self.clocks:
                clock.samples.clear()

    def _take_arrivals(self) -> None:
        """Notes the cost of each request's arrival, because an engine takes requests between its steps."""
        self.watch.take()
        for clock in self.clocks:
            self.arrivals.extend(clock.samples)
            clock.samples.clear()

    def forget_prefixes(self) -> None:
        """Empties the engine's own cache, once the engine has released its blocks."""
        until = time.monotonic() + WAIT_S
        while not self._engine.reset_prefix_cache():
            if time.monotonic() > until:
                raise RuntimeError("the engine did not empty its cache")
            self._engine.step()

    def wait_for_credits(self) -> None:
        """Waits until the sidecar has granted slots, because nothing is saved before."""
        until = time.monotonic() + WAIT_S
        while not self.worker.status()["credits"]:
            if time.monotonic() > until:
                raise RuntimeError("the sidecar granted no slots")
            time.sleep(0.05)

    def report(self) -> dict[str, Any]:
        """Returns everything measured since `restart`."""
        copied = sum(clock.copy_s for clock in self.clocks)
        return {
            "steps": self.steps,
            "waits": self.waits,
            "cpu": self.cpu,
            "waitsCpu": self.waits_cpu,
            "arrivals": self.arrivals,
            "controls": self.controls,
            "slowest": self.watch.slowest,
            "stepSeconds": self.forward_s,
            "copySeconds": copied,
            "copyBytes": sum(clock.copy_bytes for clock in self.clocks),
        }


def measure(options: argparse.Namespace, meter: Meter) -> dict[str, Any]:
    """Saves and restores `rounds` sets of prompts with the sidecar running, then computes others with it stopped."""
    draw = random.Random(options.seed)

    def prompts() -> list[list[int]]:
        return [
            [draw.randrange(VOCAB) for _ in range(options.prompt_tokens)]
            for _ in range(options.prompts)
        ]

    meter.wait_for_credits()
    meter.run(prompts(), 4)  # warm up
    meter.restart()
    meter.run(prompts(), options.answer_tokens)
    meter.watch.calibrate()
    meter.restart()
    for _ in range(options.rounds):
        once = prompts()
        meter.run(once, options.answer_tokens)
        time.sleep(1)  # saves reach the vault
        meter.forget_prefixes()
        meter.run(once, options.answer_tokens)
    healthy = meter.report()
    restored = meter.scheduler.counters.snapshot().get("tokens_restored", 0)

    meter.restart()
    os.kill(options.sidecar_pid, signal.SIGSTOP)
    try:
        for _ in range(options.rounds):
            meter.run(prompts(), options.answer_tokens)
        stopped = meter.report()
    finally:
        os.kill(options.sidecar_pid, signal.SIGCONT)
    loops = meter.watch.loops
    return {
        "healthy": healthy,
        "stopped": stopped,
        "tokensRestored": restored,
        "loops": loops,
    }


def main() -> int:
    """Reads the command line and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--sidecar-pid", required=True, type=int)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=1000)
    parser.add_argument("--answer-tokens", type=int, default=100)
    options = parser.parse_args()
    meter = Meter(make_engine(options))
    sys.stdout.write(json.dumps(measure(options, meter)) + "\n")
    sys.stdout.flush()
    # Exit at once, because the engine's exit handlers take seconds and its threads need no cleanup.
    os._exit(0)


if __name__ == "__main__":
    main()
