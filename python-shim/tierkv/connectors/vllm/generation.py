"""Owns the generation of weights that an engine's blocks belong to, and the pauses while it is uncertain."""

import logging
import secrets
from typing import Any

from tierkv.connectors.vllm import compat
from tierkv.connectors.vllm.metadata import StepReceipts

log = logging.getLogger("tierkv.shim")


class Generations:
    """The first generation is the weights on disk; each later one is random, so no other engine ever meets its blocks.

    Workers report the step that first saw changed weights (weightwatch.py). From then on nothing is restored or saved
    until vLLM's prefix cache is emptied, because new blocks build on old ones until then. Each time it is emptied,
    workers are asked before any restore: a change and its reset come between the same two steps.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._pool: Any = None
        self._cache: Any = None
        self._cache_since = 1
        #: Step that first saw the last reported change, and the last step's number.
        self.changed_at = self.step = 0
        self._question = 0
        self._is_asking = False
        self._answers = self._sleeps = 0
        #: Resets not yet explained by an answer.
        self._resets = 0
        self.name = ""

    def bind_pool(self, pool: Any) -> None:
        """Take the engine's block pool: its prefix cache object changes when emptied."""
        self._pool = pool
        self._cache = compat.prefix_cache(pool)

    @property
    def is_unsure(self) -> bool:
        """Tell whether workers still have to say if their weights changed; asks them if the cache was emptied."""
        if compat.prefix_cache(self._pool) is not self._cache:
            self._cache = compat.prefix_cache(self._pool)
            self._cache_since = self.step + 1
            self._ask()
        return self._is_asking

    @property
    def is_mixed(self) -> bool:
        """Tell whether the engine's own cache may hold blocks of earlier weights; nothing is restored or saved then."""
        return self._cache_since < self.changed_at

    def reset(self) -> None:
        """Note that vLLM empties its caches: the weights may have changed, unless sleeps explain it."""
        self._resets += 1
        self._ask()

    def _ask(self) -> None:
        self._question += 1
        self._is_asking = True
        self._answers = self._sleeps = 0

    def next_step(self) -> int:
        """Number a step; gives the open question's number, 0 for none."""
        is_calm = not self._is_asking and compat.prefix_cache(self._pool) is self._cache
        question = 0 if is_calm or not self.is_unsure else self._question
        self.step += 1
        return question

    def hear(self, receipts: StepReceipts) -> bool:
        """Take a step's receipts; True when they open a new generation."""
        is_new = receipts.changed_at > self.changed_at
        if is_new:
            self.changed_at = receipts.changed_at
            self._open("weights were changed in place")
        answers = receipts.answers[self._question] if self._is_asking else 0
        if answers == 0:
            return is_new
        self._answers += answers
        self._sleeps += receipts.sleeps
        if self._answers < self._world:
            return is_new
        # Each sleep empties the caches once; level 1 keeps the weights in host memory.
        is_explained = self._sleeps == self._resets * self._world
        self._resets = 0
        self._is_asking = False
        if is_explained or is_new:
            return is_new
        self._open("the caches were reset")
        return True

    def _open(self, why: str) -> None:
        self.name = secrets.token_hex(16)
        log.warning(
            "tierKV: %s: a new generation of the namespace begins; no other engine shares it",
            why,
        )
