"""Chooses how many of torch's threads a copy on a CPU gets: one, or all that the engine computes with.

torch divides a large copy among its threads and waits for the last one. Where a sidecar or a vault runs on the same
processors, some thread has lost its processor, so that 28 MiB took 109 ms with two threads and 14 ms with one (two busy
processors, 2026-11-29). Where processors are idle, several threads may be faster. So both are measured.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

Pairs = Sequence[tuple[int, int]]

#: A copy below this says nothing about larger ones.
TIMED_BYTES: Final = 1 << 20
#: All threads are taken where they need less than this share of one thread's time.
GAIN: Final = 0.8
#: One of so many copies tries the other number of threads, with about so many bytes.
TRY_EVERY: Final = 32
TRY_BYTES: Final = 4 << 20
#: Share of the last copy in the measured times.
SHARE: Final = 0.3


class CopyThreads:
    """Starts with one thread; all of them where they took less than `GAIN` of its time."""

    def __init__(self) -> None:
        #: Seconds a byte of past copies, with one thread (False) and with all (True).
        self._seconds: dict[bool, float] = {}
        self._copies = 0

    @property
    def takes_all(self) -> bool:
        """Tell whether copies get all threads."""
        one, every = self._seconds.get(False), self._seconds.get(True)
        return one is not None and every is not None and every < one * GAIN

    def run(self, pairs: Pairs, block_bytes: int, copy: Callable[[Pairs], None]) -> None:
        """Call `copy` with all pairs, in one or two calls; torch's threads are as before afterwards."""
        count = torch.get_num_threads()
        if count == 1:
            copy(pairs)
            return
        takes_all = self.takes_all
        self._copies += 1
        # The second copy tries first, since the first one also prepares memory.
        is_trial = self._copies % TRY_EVERY == 2
        tried = max(1, TRY_BYTES // block_bytes) if is_trial else 0
        try:
            for some, with_all in ((pairs[:tried], not takes_all), (pairs[tried:], takes_all)):
                if some:
                    torch.set_num_threads(count if with_all else 1)
                    self._timed(some, len(some) * block_bytes, copy, with_all=with_all)
        finally:
            torch.set_num_threads(count)

    def _timed(
        self, pairs: Pairs, size: int, copy: Callable[[Pairs], None], *, with_all: bool
    ) -> None:
        started = time.perf_counter()
        copy(pairs)
        if size < TIMED_BYTES or self._copies == 1:
            return
        seconds = (time.perf_counter() - started) / size
        known = self._seconds.get(with_all, seconds)
        self._seconds[with_all] = known + SHARE * (seconds - known)
