"""Owns the tables of docs/fidelity.md: printed row by row, and with `--save` kept in bench/results/fidelity.

`npx vitest run -c test/vitest.config.ts test/engine/fidelity.test.ts -u` then puts them on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "fidelity"


class Table:
    """A Markdown table; the first column is text unless `is_numbers`."""

    def __init__(self, head: Sequence[str], *, is_numbers: bool = False) -> None:
        self._lines: list[str] = []
        self.add(*head)
        self._say(("|---:|" if is_numbers else "|---|") + "---:|" * (len(head) - 1))

    def add(self, *cells: str) -> None:
        self._say("| " + " | ".join(cells) + " |")

    def _say(self, line: str) -> None:
        print(line, flush=True)
        self._lines.append(line)

    def keep(self, name: str, *, is_saved: bool) -> None:
        if is_saved:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.md").write_text("\n".join(self._lines) + "\n")
