"""Owns the generation of weights that an engine's blocks belong to, and the pauses while it is uncertain."""

import hashlib
import logging
import secrets
from typing import Any

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import Memory, StepReceipts

log = logging.getLogger("tierkv.shim")


class Generations:
    """The first generation is the weights as loaded; a later one has the name of what lies in memory.

    A name is random where memory does not show all weights, so no other engine ever meets its blocks. Workers report
    the step that first saw changed weights (weightwatch.py). From then on nothing is restored or saved until vLLM's
    prefix cache is emptied, because new blocks build on old ones until then. Each time it is emptied, workers read
    what their models hold before any restore: a change and its reset come between the same two steps.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self._pool: Any = None
        self._cache: Any = None
        self._cache_since = 1
        #: Step that first saw the last reported change, and the last step's number.
        self.changed_at = self.step = 0
        #: The last question, and the last that a step carried.
        self._question = self._carried = 0
        self._is_asking = False
        self._answers: dict[int, Memory] = {}
        #: Whether a reset included connectors, which says that weights may have changed.
        self._is_reset = False
        #: Empty: the weights as loaded.
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
    def has_question(self) -> bool:
        """Tell whether no step has carried the open question yet: an idle engine takes one for it.

        Workers then read before the next request comes, which would wait for the reading of all weights.
        """
        return self.is_unsure and self._carried != self._question

    @property
    def is_mixed(self) -> bool:
        """Tell whether the engine's own cache may hold blocks of earlier weights; nothing is restored or saved then."""
        return self._cache_since < self.changed_at

    def reset(self) -> None:
        """Note that vLLM empties its caches: the weights may have changed."""
        self._is_reset = True
        self._ask()

    def _ask(self) -> None:
        self._question += 1
        self._is_asking = True
        self._answers = {}

    def next_step(self) -> int:
        """Number a step; gives the open question's number, 0 for none."""
        is_calm = not self._is_asking and compat.prefix_cache(self._pool) is self._cache
        question = 0 if is_calm or not self.is_unsure else self._question
        self.step += 1
        self._carried = question or self._carried
        return question

    def hear(self, receipts: StepReceipts) -> bool:
        """Take a step's receipts; True when they open another generation."""
        is_changed = receipts.changed_at > self.changed_at
        if is_changed:
            self.changed_at = receipts.changed_at
            self._open(secrets.token_hex(16), "weights were changed in place")
        if not self._is_asking:
            return is_changed
        answers = {
            rank: one for rank, one in receipts.memory.items() if one.question == self._question
        }
        self._answers |= answers
        if len(self._answers) < self._world:
            return is_changed
        name = self._named()
        self._is_asking = self._is_reset = False
        return self._open(name, "the caches were reset") or is_changed

    def _named(self) -> str:
        """Name what all ranks hold."""
        found = [self._answers[rank] for rank in sorted(self._answers)]
        if all(one.is_loaded for one in found):
            return ""
        if not all(one.digest for one in found):
            return secrets.token_hex(16) if self._is_reset else self.name
        return hashlib.sha256("".join(one.digest for one in found).encode()).hexdigest()[:32]

    def _open(self, name: str, why: str) -> bool:
        if name == self.name:
            return False
        self.name = name
        log.warning(
            "tierKV: %s: %s",
            why,
            "another generation of the namespace begins; only engines that hold equal weights share it"
            if name
            else "the weights are as they were loaded, and so is the namespace",
        )
        return True
