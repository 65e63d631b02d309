"""Owns the tickets of one rank: each step with saves is acknowledged exactly once, whatever becomes of its copies."""

from collections import Counter


class Tickets:
    """A ticket that is never closed would keep blocks of the engine from being used for ever."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        #: Ranks' acknowledgements by ticket, for the next `take`.
        self.closed: Counter[int] = Counter()
        self._latest = 0
        #: Tickets handed over in this step; the next step confirms that vLLM got them.
        self._taken: Counter[int] = Counter()
        self.is_unconfirmed = False

    def open(self, number: int) -> None:
        """Open the ticket of a step that saves."""
        self._latest = number
        self._open.add(number)

    def owe(self, number: int) -> None:
        """Open a step's ticket, unless the step has already opened it."""
        if number != self._latest:
            self.open(number)

    def close(self, number: int) -> None:
        """Acknowledge a step whose copies are done or dropped."""
        if number in self._open:
            self._open.discard(number)
            self.closed[number] += 1

    def close_all(self) -> None:
        for number in sorted(self._open):
            self.close(number)

    def take(self) -> Counter[int]:
        """Give the tickets acknowledged since the last call."""
        self._taken, self.closed = self.closed, Counter()
        self.is_unconfirmed = True
        return self._taken

    def take_again(self) -> Counter[int]:
        """Give the last `take` again, with what came since, because the call that took it failed."""
        taken = self._taken + self.closed
        self._taken, self.closed = Counter(), Counter()
        return taken

    def confirm(self) -> None:
        """Confirm, as the next step begins, that vLLM got what was taken."""
        self._taken = Counter()
        self.is_unconfirmed = False
