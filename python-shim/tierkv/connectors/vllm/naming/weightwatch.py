"""Watches the calls of a vLLM worker that may change its weights, and what its models hold; one for each worker."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import Memory, StepMetadata, StepReceipts
from tierkv.connectors.vllm.naming.memory import Held, MemoryDigest

log = logging.getLogger("tierkv.shim")

#: Calls of a worker after which weights may differ; test_weightwatch.py finds calls that a release adds.
CHANGING: Final = (
    "checkpoint_restore",
    "discard",
    "finish_weight_update",
    "load_model",
    "reload_weights",
    "reset_weights",
    "start_draft_weight_update",
    "start_weight_update",
    "update_weights",
)
#: Calls that may change more than a model's memory shows: code, configuration, the division among ranks.
REBUILDING: Final = ("apply_model", "elastic_ep_execute", "update_config")
#: Calls that take memory away and bring it back.
RESTING: Final = ("sleep", "wake_up")
_WEIGHTS: Final = "weights"


class WeightWatch:
    """Counts changes from the moment a call begins, on the worker's own thread: no forward runs beside such a call.

    The models' memory is read when they are loaded, and after each emptying of vLLM's caches.
    """

    def __init__(self) -> None:
        self._changes = self._seen = 0
        self.changed_at = 0
        self._told = 0
        #: Whether weights have changed since the last report.
        self.has_news = False
        self._worker: Any = None
        self._memory = MemoryDigest(self._models)
        #: The models' memory when they were loaded; None where that is not known.
        self._loaded: Held | None = None
        self._is_rebuilt = self._is_away = False
        #: The question that was last read for, and the last one answered.
        self._question = self._answered = 0

    def install(self, worker: Any | None) -> None:
        """Wrap the calls of one worker, of its model runner and of its model; None: nothing can be watched."""
        if worker is None:
            log.warning(
                "tierKV: found no vLLM worker to watch: after weights are changed in place, call "
                "reset_prefix_cache(reset_connector=True), or blocks of old and new weights get one name"
            )
            return
        self._worker = worker
        notes = dict.fromkeys(CHANGING, self._changed) | dict.fromkeys(REBUILDING, self._rebuilt)
        notes |= {"sleep": self._slept, "load_weights": self._changed, "discard": self._discarded}
        for owner, name, call in compat.weight_calls(worker, (*CHANGING, *REBUILDING, *RESTING)):
            if name == "wake_up":
                self._wrap_waking(owner, call)
            else:
                self._wrap(owner, name, call, notes[name])

    @staticmethod
    def _wrap(owner: Any, name: str, call: Callable[..., Any], note: Callable[..., None]) -> None:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return call(*args, **kwargs)

        setattr(owner, name, watched)

    def _wrap_waking(self, owner: Any, call: Callable[..., Any]) -> None:
        @functools.wraps(call)
        def woken(tags: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = call(tags, *args, **kwargs)
            if tags is None or _WEIGHTS in tags:
                self._is_away = False
            return result

        owner.wake_up = woken

    def _changed(self, *_: Any, **__: Any) -> None:
        self._rest()
        self._changes += 1

    def _rebuilt(self, *_: Any, **__: Any) -> None:
        self._changed()
        self._is_rebuilt = True

    def _discarded(self, *_: Any, **__: Any) -> None:
        self._changed()
        self._is_away = True

    def _slept(self, level: int = 1, *_: Any, **__: Any) -> None:
        self._rest()
        self._is_away = True
        if level != 1:
            self._changes += 1

    # --- the memory of the models ------------------------------------------------------------------

    def _models(self) -> Sequence[Any]:
        return [] if self._worker is None else compat.models_of(self._worker)

    def read_loaded(self) -> None:
        """Begin to read what was loaded; before the engine is captured or steps."""
        self._memory.start()

    def end_reading(self, patience_s: float = limits.MEMORY_WAIT_S) -> None:
        """Take what was read, because calls may change it from now on."""
        if self._loaded is None and self._question == 0 and self._changes == 0:
            self._memory.stop(patience_s)
            self._loaded = self._memory.held

    def _rest(self) -> None:
        """Read nothing while a call changes it or takes it away; a question is read for again."""
        self.end_reading()
        self._memory.stop()
        if self._question != self._answered:
            self._question = self._answered

    # --- steps -------------------------------------------------------------------------------------

    def begin_step(self, step: int, question: int = 0) -> None:
        """Begin step number `step`, which is the first to see a change since the last one; read for a new question."""
        if self._changes != self._seen:
            self._seen = self._changes
            self.changed_at = step
            self.has_news = True
        if question not in (0, self._question) and not self._is_away:
            self.end_reading()
            self._question = question
            self._memory.start()

    def is_unheard(self, metadata: StepMetadata) -> bool:
        """Tell whether the scheduler planned this step before it knew of the last change."""
        return self.changed_at > metadata.heard

    def report(self, metadata: StepMetadata, receipts: StepReceipts, rank: int) -> None:
        """Add new changes to a step's receipts, and the answer to its question once the models are read."""
        self.has_news = False
        if self.changed_at > self._told:
            self._told = receipts.changed_at = self.changed_at
        question = metadata.question
        if question in (0, self._answered) or question != self._question:
            return
        if self._memory.is_done:
            self._answered = question
            receipts.memory[rank] = self._answer(question)

    def _answer(self, question: int) -> Memory:
        held, loaded = self._memory.held, self._loaded
        if held is None or self._is_rebuilt:
            return Memory(question)
        # Where functions keep weights to themselves, only their identity shows, and a change in place would not.
        is_shown = held.is_whole or self._changes == 0
        is_loaded = loaded is not None and is_shown and held.is_same(loaded)
        return Memory(question, held.digest if held.is_whole else "", is_loaded=is_loaded)
