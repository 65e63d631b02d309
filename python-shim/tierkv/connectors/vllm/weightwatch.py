"""Watches the calls of a vLLM worker that may change its weights; each worker process has one watch."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from tierkv.connectors.vllm import compat
from tierkv.connectors.vllm.metadata import StepMetadata, StepReceipts

log = logging.getLogger("tierkv.shim")

#: Calls of a worker after which weights may differ; test_weightwatch.py finds calls that a release adds.
CHANGING: Final = (
    "apply_model",  # hands the model to the caller's function
    "checkpoint_restore",
    "discard",
    "elastic_ep_execute",
    "finish_weight_update",
    "load_model",
    "reload_weights",
    "reset_weights",
    "start_draft_weight_update",
    "start_weight_update",
    "update_config",
    "update_weights",
)


class WeightWatch:
    """Counts changes from the moment a call begins, on the worker's own thread: no forward runs beside such a call."""

    def __init__(self) -> None:
        self._changes = self._seen = self._sleeps = 0
        self.changed_at = 0
        self._told = 0
        #: Whether weights have changed since the last report.
        self.has_news = False

    def install(self, worker: Any | None) -> None:
        """Wrap the calls of one worker, of its model runner and of its model; None: nothing can be watched."""
        if worker is None:
            log.warning(
                "tierKV: found no vLLM worker to watch: after weights are changed in place, call "
                "reset_prefix_cache(reset_connector=True), or blocks of old and new weights get one name"
            )
            return
        for owner, name, call in compat.weight_calls(worker, (*CHANGING, "sleep")):
            self._wrap(owner, name, call, self._slept if name == "sleep" else self._changed)

    @staticmethod
    def _wrap(owner: Any, name: str, call: Callable[..., Any], note: Callable[..., None]) -> None:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return call(*args, **kwargs)

        setattr(owner, name, watched)

    def _changed(self, *_: Any, **__: Any) -> None:
        self._changes += 1

    def _slept(self, level: int = 1, *_: Any, **__: Any) -> None:
        if level == 1:
            self._sleeps += 1
        else:
            self._changes += 1

    def begin_step(self, step: int) -> None:
        """Begin step number `step`, which is the first to see a change since the last one."""
        if self._changes != self._seen:
            self._seen = self._changes
            self.changed_at = step
            self.has_news = True

    def is_unheard(self, metadata: StepMetadata) -> bool:
        """Tell whether the scheduler planned this step before it knew of the last change."""
        return self.changed_at > metadata.heard

    def report(self, metadata: StepMetadata, receipts: StepReceipts) -> None:
        """Add new changes to a step's receipts, and the answer to its question."""
        self.has_news = False
        if self.changed_at > self._told:
            self._told = receipts.changed_at = self.changed_at
        if metadata.question:
            receipts.answers[metadata.question] += 1
            receipts.sleeps += self._sleeps
            self._sleeps = 0
