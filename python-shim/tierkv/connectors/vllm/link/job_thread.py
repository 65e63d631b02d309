"""Owns a thread that runs jobs in order and can be drained; it copies for vLLM's own offloading."""

import threading
from collections import deque
from collections.abc import Callable

from tierkv.connectors.vllm import limits


class JobThread:
    """A job that has not begun when the thread is drained is called as given up."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[bool], None]] = deque()
        self._busy = self._closing = self._draining = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_busy(self) -> bool:
        with self._changed:
            return self._busy or bool(self._jobs)

    def add(self, job: Callable[[bool], None]) -> None:
        """Queue `job`, which is called with whether it is given up, and never raises."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def drain(self) -> None:
        with self._changed:
            self._draining = True
            self._changed.wait_for(lambda: not self._jobs and not self._busy)
            self._draining = False

    def close(self) -> None:
        self.drain()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(limits.TIER_CLOSE_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                job, self._busy = self._jobs.popleft(), True
                is_given_up = self._draining
            job(is_given_up)
