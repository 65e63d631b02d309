"""Times the engine's forward passes, so that the sidecar learns the cost of computing a prompt here."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from tierkv.connectors.vllm import limits

#: Tokens computed, token pairs attended to, microseconds.
Sample = list[int]


def prompt_work(scheduled: Mapping[str, int], requests: Mapping[str, Any]) -> tuple[int, int]:
    """Give the tokens a step computes, and the pairs of a token and one before it; zeros if it teaches nothing.

    `scheduled`: tokens of this step by request; `requests`: what the shim keeps of each, before the step.
    """
    if max(scheduled.values(), default=0) < limits.STEP_TOKENS_MIN:
        return 0, 0
    tokens = attended = 0
    for req_id, count in scheduled.items():
        kept = requests.get(req_id)
        if kept is None:
            return 0, 0  # a request without state here
        tokens += count
        attended += count * kept.request.num_computed_tokens + count * count // 2
    return tokens, attended


class StepGauge:
    """Times a step from the moment vLLM hands over its work until the forward is done, our own loads apart.

    On CUDA by events on the engine's stream, read steps later; nothing ever waits for them. Written from PyTorch's
    sources for CUDA, not run there.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._samples: deque[Sample] = deque(maxlen=limits.STEP_SAMPLES_MAX)
        self._running: deque[tuple[int, int, Any, Any]] = deque(maxlen=limits.STEP_SAMPLES_MAX)
        self._begun: tuple[int, int, Any] | None = None
        self._loading_s = 0.0
        #: Whether a step is being timed, so that steps without tokens must be reported, too.
        self.is_running = False

    def begin(self, tokens: int, attended: int) -> None:
        """Start timing a step; `tokens` is 0 for a step that teaches nothing."""
        self._collect()
        self._loading_s = 0.0
        self._begun = (tokens, attended, self._mark()) if tokens else None
        self.is_running = bool(tokens or self._running)

    def loaded(self, seconds: float) -> None:
        """Subtract the time of tierKV's loads, which run on the engine's thread."""
        self._loading_s += seconds

    def end(self) -> None:
        """Stop timing: the step's forward has run, or on CUDA is queued."""
        if self._begun is None:
            return
        tokens, attended, mark = self._begun
        self._begun = None
        if self._on_cuda:
            self._running.append((tokens, attended, mark, self._mark()))
        else:
            self._note(tokens, attended, time.perf_counter() - mark - self._loading_s)
            self.is_running = False

    def _mark(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _collect(self) -> None:
        while self._running and self._running[0][3].query():
            tokens, attended, begun, ended = self._running.popleft()
            self._note(tokens, attended, begun.elapsed_time(ended) / 1000)

    def _note(self, tokens: int, attended: int, seconds: float) -> None:
        self._samples.append([tokens, attended, max(1, int(seconds * 1e6))])

    def take(self) -> dict[str, list[Sample]]:
        """Give the samples since the last call as a field of `counts`; called from the helper thread."""
        taken: list[Sample] = []
        while self._samples:
            taken.append(self._samples.popleft())
        return {"steps": taken} if taken else {}
