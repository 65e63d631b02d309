"""Takes the sidecar's arenas in: maps one, has it prepared for copies, and only then asks for slots of it."""

import logging
import threading
from collections.abc import Callable

from tierkv.connectors.vllm.arena import Arena, ArenaTable
from tierkv.connectors.vllm.copies import Copier
from tierkv.connectors.vllm.counters import Counters
from tierkv.connectors.vllm.credits import Credits
from tierkv.connectors.vllm.frames import Frame

log = logging.getLogger("tierkv.shim")


class ArenaSetup:
    """One rank's. Preparing runs on a thread of its own: what it prepared for an earlier arena is not used."""

    def __init__(
        self,
        arenas: ArenaTable,
        granted: Credits,
        counters: Counters,
        send: Callable[[Frame], bool],
    ) -> None:
        self._arenas = arenas
        self._credits = granted
        self._counters = counters
        self._send = send
        self._lock = threading.Lock()
        #: Counts arenas, and ends of connections.
        self._number = 0

    def take(self, frame: Frame, copier: Copier) -> None:
        """Map the arena of a frame; one that cannot be mapped is reported."""
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
        self._arenas.add(arena)
        with self._lock:
            self._number += 1
            number = self._number
            self._credits.renew(None, is_coming=True)
        copier.prepare(arena, lambda: self._use(arena, number))

    def _use(self, arena: Arena, number: int) -> None:
        with self._lock:
            if number != self._number:
                return
            self._credits.renew(arena)
            self._send({"t": "mapped", "arena": arena.arena_id})

    def end(self) -> None:
        """Forget the credits, because the connection has ended; mapped arenas stay for loads that were admitted."""
        with self._lock:
            self._number += 1
            self._credits.renew(None)
