"""Many requests with shared prefixes on a cache too small for them, some aborted at the worst moments."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams

from harness.inside_audit import Audit
from harness.inside_steps import finish

if TYPE_CHECKING:
    from harness.engine_main import Host

Json = dict[str, Any]
PRESS_S = 600.0


def press(
    host: Host,
    prompts: list[list[int]],
    max_tokens: list[int],
    in_flight: int,
    aborts: float = 0.0,
    seed: int = 0,
) -> Json:
    """Keeps `in_flight` requests going; aborts a share of them, loading ones first.

    Return the tokens of every finished request, the counts of the hard cases, and the restored pages with the
    number of wrong ones.
    """
    audit = Audit(host) if host.shim is not None else None
    press = _Press(host, random.Random(seed), aborts)
    waiting = list(range(len(prompts)))[::-1]
    deadline = time.monotonic() + PRESS_S
    while waiting or press.alive:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(waiting) + len(press.alive)} requests left after {PRESS_S} s")
        while waiting and len(press.alive) < in_flight:
            number = waiting.pop()
            press.add(number, prompts[number], max_tokens[number])
        press.step()
    finish(host)  # because loads of aborted requests are still reported
    press.unhook()
    found: Json = {"answers": press.answers, "seen": press.seen}
    if audit is not None:
        audit.unhook()
        found |= {"pages": audit.pages, "strange": audit.strange}
    return found


class _Press:
    """The open requests, and counts of events."""

    def __init__(self, host: Host, chance: random.Random, aborts: float) -> None:
        self._host = host
        self._chance = chance
        self._aborts = aborts
        self._preempt = host.scheduler._preempt_request
        self.alive: set[str] = set()
        self.answers: dict[str, list[int]] = {}
        self.seen = {"preempted": 0, "aborted": 0, "aborted_loading": 0, "aborted_asking": 0}
        host.scheduler._preempt_request = self._on_preempt

    def unhook(self) -> None:
        self._host.scheduler._preempt_request = self._preempt

    def _on_preempt(self, *args: Any, **kwargs: Any) -> Any:
        self.seen["preempted"] += 1
        return self._preempt(*args, **kwargs)

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True
        )
        self._host.llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        self.alive.add(str(number))

    def step(self) -> None:
        for output in self._host.llm.llm_engine.step():
            if output.finished:
                self.alive.discard(output.request_id)
                self.answers[output.request_id] = list(output.outputs[0].token_ids)
        if self._aborts and self._chance.random() < self._aborts:
            self._abort_one()

    def _abort_one(self) -> None:
        """Returns a loading request if there is one, else a waiting one, else any."""
        shim = self._host.shim
        internal = {key: r.external_req_id for key, r in self._states().items()}
        loading = [name for key, name in internal.items() if shim._loads.is_loading(key)]
        asking = [name for key, name in internal.items() if shim._book.get(key) is not None]
        for kind, names in (("_loading", loading), ("_asking", asking), ("", sorted(self.alive))):
            alive = [name for name in names if name in self.alive]
            if alive and (kind == "_loading" or self._chance.random() < 0.5):
                victim = self._chance.choice(alive)
                self._host.llm.llm_engine.abort_request([victim])
                self.alive.discard(victim)
                self.seen[f"aborted{kind}"] += 1
                return

    def _states(self) -> dict[str, Any]:
        """Returns vLLM's own records of the requests, by its internal ids."""
        states: dict[str, Any] = self._host.llm.llm_engine.output_processor.request_states
        return states
