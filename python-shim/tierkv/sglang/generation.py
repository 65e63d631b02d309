"""Owns the generation of the weights that an engine of SGLang computes with, and whether its caches hold others'."""

import secrets
import threading


class Generation:
    """`name`: empty for the weights as loaded, random after each change; `number` counts changes.

    From a change on nothing is named until SGLang has flushed its caches, because new pages build on old ones until
    then. A change of weights while the caches are empty needs no other flush. The scheduler's thread reports, the
    threads of HiCache ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_pages = False
        self.name = ""
        self.number = 0
        #: Whether the caches may hold pages of earlier weights.
        self.is_mixed = False

    def note_change(self) -> None:
        """Note that weights change, or may have changed."""
        with self._lock:
            self.name = secrets.token_hex(16)
            self.number += 1
            self.is_mixed = self.is_mixed or self._has_pages

    def note_pages(self) -> None:
        """Note that the caches have pages now: computed, or restored."""
        self._has_pages = True

    def note_flush(self) -> None:
        """Note that all caches are empty."""
        with self._lock:
            self._has_pages = self.is_mixed = False


#: The one of this process, which holds one model.
CURRENT = Generation()
