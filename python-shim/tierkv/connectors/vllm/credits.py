"""Owns one rank's credits: free slots of the current arena, which the sidecar grants ahead and saves use up."""

import struct
import threading
from collections import deque

from tierkv.connectors.vllm.arena import Arena

_PAIR = struct.Struct("<II")


class Credits:
    """Granted on the helper thread, taken on the engine's. A credit is a slot number and its generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: deque[tuple[int, int]] = deque()
        self.arena: Arena | None = None
        #: An arena is being prepared: saves wait for it.
        self.is_coming = False

    def renew(self, arena: Arena | None, *, is_coming: bool = False) -> None:
        """Forget all: what comes belongs to another arena, perhaps to one that is not ready yet, or nothing comes."""
        with self._lock:
            self.arena = None
            self._free.clear()
            self.is_coming = is_coming
            self.arena = arena

    def grant(self, arena_id: int, slots: bytes) -> None:
        """Take credits, unless they are of another arena."""
        with self._lock:
            if self.arena is not None and self.arena.arena_id == arena_id:
                self._free.extend(_PAIR.iter_unpack(slots))

    def take(self, most: int) -> tuple[Arena | None, list[tuple[int, int]]]:
        """Use up to `most` of them."""
        with self._lock:
            count = min(len(self._free), most)
            return self.arena, [self._free.popleft() for _ in range(count)]

    def is_of(self, arena: Arena) -> bool:
        """Tell whether slots of this arena are still the ones that were granted."""
        with self._lock:
            return self.arena is arena

    @property
    def left(self) -> int | None:
        """Give how many there are; None where no arena is there or coming."""
        count = len(
            self._free
        )  # first, because `renew` takes the arena away before: no lock is needed
        return None if self.arena is None and not self.is_coming else count
