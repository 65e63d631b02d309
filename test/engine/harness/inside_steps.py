"""Drives an engine step by step, to stop it at a chosen moment and change the world around it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine_main import Host

Json = dict[str, Any]
STEPS_S = 60.0

#: Moments at which a test may stop; the ones of STEPPED come only while the engine steps.
MOMENTS: dict[str, Callable[[Host], bool]] = {
    "asked": lambda host: host.shim.status()["plans"] > 0,
    "looked_up": lambda host: any(plan.is_looked_up for plan in host.shim._book._plans.values()),
    "placed": lambda host: any(plan.is_done for plan in host.shim._book._plans.values()),
    "loading": lambda host: host.shim.status()["loads"] > 0,
    # Some of a prompt's blocks are in their pages, others are still to come.
    "windowed": lambda host: any(
        window.loaded > 0 and window.job.is_open for window in host.shim._windows.by_id.values()
    ),
    "running": lambda host: any(
        request.num_computed_tokens > request.num_prompt_tokens + 2
        for request in host.scheduler.running
    ),
    "saving": lambda host: any(state.cursor.next_block for state in host.shim._requests.values()),
    "saved": lambda host: (
        not any((host.shim._saves.waiting, host.shim._saves._in_flight, host.shim._saves._behind))
    ),
    "up": lambda host: host.shim._channel.is_up and host.shim._book.restore_on,
    "tier_asked": lambda host: any(
        reader.plan is not None for reader in host.scheduler.connector._tier._readers.values()
    ),
    "down": lambda host: not host.shim._channel.is_up,
}
STEPPED = ("loading", "windowed", "running", "saving", "saved", "tier_asked")


def begin(
    host: Host,
    prompts: dict[str, list[int]],
    max_tokens: int = 8,
    prompt_logprobs: int | None = None,
) -> None:
    """Adds requests under the test's own ids."""
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        prompt_logprobs=prompt_logprobs,
        detokenize=False,
        ignore_eos=True,
    )
    for request_id, prompt in prompts.items():
        host.llm.llm_engine.add_request(request_id, {"prompt_token_ids": prompt}, params)


def go_on_until(host: Host, moment: str, timeout_s: float = STEPS_S) -> None:
    """Steps, or waits, until a moment of MOMENTS has come; TimeoutError otherwise."""
    deadline = time.monotonic() + timeout_s
    while not MOMENTS[moment](host):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{moment!r} did not come within {timeout_s} s")
        if moment in STEPPED:
            host.llm.llm_engine.step()
        else:
            time.sleep(0.01)


def read_weights(host: Host, timeout_s: float = STEPS_S) -> None:
    """Asks for short answers until the workers have read their weights after a reset.

    On a busy machine that takes longer than a request waits where `stall_ms` is short.
    """
    deadline = time.monotonic() + timeout_s
    while host.shim._generations.is_unsure:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the weights are not read after {timeout_s} s")
        begin(host, {"short": [1, 2, 3]})
        finish(host)


def abort(host: Host, request_ids: list[str]) -> None:
    """Aborts requests as a vanished client does."""
    host.llm.llm_engine.abort_request(request_ids)


def preempt_all(host: Host) -> None:
    """Preempts every running request and forgets all cached blocks, so that they start over when blocks are free."""
    assert host.scheduler.reset_prefix_cache(reset_running_requests=True)


def finish(host: Host, timeout_s: float = STEPS_S) -> Json:
    """Steps until no request is left, and once more for aborts; returns tokens by id."""
    deadline = time.monotonic() + timeout_s
    answers: Json = {}
    engine = host.llm.llm_engine
    while engine.has_unfinished_requests() or host.scheduler.requests:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"requests are left after {timeout_s} s: {list(host.scheduler.requests)}"
            )
        for output in engine.step():
            if output.finished:
                (completion,) = output.outputs
                tokens = list(completion.token_ids)
                answers[output.request_id] = {"tokens": tokens, "cached": output.num_cached_tokens}
    return answers
