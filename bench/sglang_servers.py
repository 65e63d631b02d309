"""Owns the measuring of first tokens of SGLang's server: pages from tierKV, from its file back-end, and its own hits.

Prints one JSON line: seconds of a prompt's answer of one token, by storage, by where its pages were, and by round.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from harness import reaper
from harness.models import prompt
from harness.processes import wait_until
from harness.sglang import SglangServer, file_storage, storage

#: Vocabulary of the thin models with a published model's KV.
VOCAB = 512
SAVED_S = 120.0

Seconds = dict[str, list[float]]


class Measured:
    """One server and its seconds. It runs only while it is asked: an idle scheduler of SGLang keeps a core busy."""

    def __init__(self, server: SglangServer, asked: list[int], other: list[int], page: int) -> None:
        self._server = server
        self._asked, self._other = asked, other
        self._full = (len(asked) - 1) // page * page
        self.seconds: Seconds = {"storage": [], "device": [], "host": []}

    def start(self) -> None:
        """Start it, and let its storage have the prompts."""
        self._server.start()
        for text in (self._asked, self._other):
            self._server.generate(text, 1)
        wait_until(self._is_kept, "all pages are in the storage", SAVED_S)
        self.pause()

    def _is_kept(self) -> bool:
        self._server.flush()
        return bool(self._server.generate(self._asked, 1)["restored"] == self._full)

    def pause(self) -> None:
        self._server.signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._server.signal_all(signal.SIGCONT)

    def end(self) -> None:
        if self._server.is_running:
            self.resume()
            self._server.end()

    def measure(self) -> None:
        """Ask once with the pages in the storage, in the device's memory, and in the host's."""
        self.resume()
        self._server.flush()
        self._ask("storage", {"restored": self._full})
        self._ask("device", {"restored": 0, "host": 0, "cached": self._full})
        # The device has no room for both.
        self._server.generate(self._other, 1)
        self._ask("host", {"restored": 0, "host": self._full})
        self.pause()

    def _ask(self, source: str, expected: dict[str, int]) -> None:
        began = time.perf_counter()
        answer: dict[str, Any] = self._server.generate(self._asked, 1)
        self.seconds[source].append(time.perf_counter() - began)
        found = {name: answer[name] for name in expected}
        if found != expected:
            raise RuntimeError(f"{self._server.name}, {source}: {found} in place of {expected}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("config", "folder", "model", "layout"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("tokens", "page", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    # Servers have sessions of their own, and are stopped most of the time; none may outlive this process.
    os.environ[reaper.MARK] = uuid.uuid4().hex
    ending = reaper.start(os.environ[reaper.MARK])
    folder = Path(given.folder)
    folder.mkdir()
    common = {"layout": given.layout, "page": given.page, "tokens_max": 2 * given.tokens}
    kept = {
        "ours": storage(Path(given.config), given.page),
        "files": file_storage(folder / "pages", given.page),
    }
    # One token more than whole pages, because SGLang computes the last token.
    asked = prompt(1, given.tokens + 1, VOCAB)
    other = prompt(2, given.tokens * 3 // 2, VOCAB)
    servers = {
        name: Measured(
            SglangServer(folder, name, given.model, options, **common), asked, other, given.page
        )
        for name, options in kept.items()
    }
    try:
        for server in servers.values():
            server.start()
        for _ in range(given.rounds + 1):
            for server in servers.values():
                server.measure()
    finally:
        for server in servers.values():
            server.end()
        ending.communicate()
    # The first round warms up.
    found = {
        name: {source: seconds[1:] for source, seconds in server.seconds.items()}
        for name, server in servers.items()
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
