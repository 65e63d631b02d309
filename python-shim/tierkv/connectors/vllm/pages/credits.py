"""Owns one rank's arenas, and its credits: free slots of the present one, which the sidecar grants and saves use up."""

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import Copier

log = logging.getLogger("tierkv.shim")

_PAIR = struct.Struct("<II")


class Credits:
    """Granted on the helper thread, used on the engine's. A credit is a slot number and its generation.

    An arena's slots are requested once it is mapped and prepared for copies, on a thread of its own. An arena that a
    later one replaced meanwhile is not used.
    """

    def __init__(self, counters: Counters, send: Callable[[Frame], bool]) -> None:
        self._counters = counters
        self._send = send
        self._lock = threading.Lock()
        #: Mapped arenas by id, in order: the present one, and old ones that admitted loads may still read.
        self._arenas: dict[int, Arena] = {}
        self._present: Arena | None = None
        self._free: deque[tuple[int, int]] = deque()
        #: Whether an arena is being prepared, so that saves wait.
        self.is_coming = False
        #: Number of arenas and of ended connections so far.
        self._number = 0

    def take_in(self, frame: Frame, copier: Copier) -> None:
        """Map and prepare the arena of a frame; a failure is reported.

        The oldest beyond `ARENAS_MAX` are unmapped when their last view is gone.
        """
        try:
            arena = Arena(
                frame["arena"],
                frame["fd"],
                frame["bytes"],
                frame["slot_bytes"],
                frame["slot_count"],
            )
        except OSError as error:
            self._counters.add("arena_map_failed")
            log.warning("tierKV: %s; no block is saved or restored", error)
            self._send({"t": "unmapped", "arena": frame["arena"], "reason": str(error)})
            return
        old = []
        with self._lock:
            self._arenas[arena.arena_id] = arena
            while len(self._arenas) > limits.ARENAS_MAX:
                old.append(self._arenas.pop(next(iter(self._arenas))))
            number = self._forget(is_coming=True)
        for each in old:
            copier.retire(each)
        copier.prepare(arena, lambda: self._use(arena, number))

    def _forget(self, *, is_coming: bool) -> int:
        """Void all credits, because later ones belong to another arena."""
        self._present = None
        self._free.clear()
        self.is_coming = is_coming
        self._number += 1
        return self._number

    def _use(self, arena: Arena, number: int) -> None:
        with self._lock:
            if number == self._number:
                self._present, self.is_coming = arena, False
                self._send({"t": "mapped", "arena": arena.arena_id})

    def end(self) -> None:
        """Forget the credits, because the connection has ended; mapped arenas stay for loads that were admitted."""
        with self._lock:
            self._forget(is_coming=False)

    def retire(self, read: Sequence[int]) -> list[Arena] | None:
        """Give up the arenas that no later step loads from, because a later one replaced them; gives them.

        `read`: those that later steps may load from. None while this rank has yet to map them.
        """
        with self._lock:
            if not all(arena_id in self._arenas for arena_id in read):
                return None
            newest = list(self._arenas).index(read[-1])
            old = [each for each in list(self._arenas)[:newest] if each not in read]
            return [self._arenas.pop(arena_id) for arena_id in old]

    def mapped(self, arena_id: int) -> Arena | None:
        """Give a mapped arena by the sidecar's number for it."""
        with self._lock:
            return self._arenas.get(arena_id)

    def grant(self, arena_id: int, slots: bytes) -> None:
        """Add credits of the present arena; others are ignored."""
        with self._lock:
            if self._present is not None and self._present.arena_id == arena_id:
                self._free.extend(_PAIR.iter_unpack(slots))

    def take(self, most: int) -> tuple[Arena | None, list[tuple[int, int]]]:
        """Use up to `most` credits; gives the present arena with them."""
        with self._lock:
            count = min(len(self._free), most)
            return self._present, [self._free.popleft() for _ in range(count)]

    def is_of(self, arena: Arena) -> bool:
        """Tell whether an arena is still the present one."""
        with self._lock:
            return self._present is arena

    @property
    def left(self) -> int | None:
        """Give the number of credits; None without a present or coming arena."""
        # Counted first, because `_forget` removes the arena before the credits: no lock is needed.
        count = len(self._free)
        return None if self._present is None and not self.is_coming else count
