"""Owns the table of the comparison with public routers: one line a router, ranges over rounds."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = dict[str, Any]
#: Lines of the page between which the table stands.
BEGIN, END = "<!-- routers: begin -->", "<!-- routers: end -->"
MICROSECONDS = 1e6
#: The rival of the goal for requests a second and core.
RIVAL = "sglang-router cache_aware"
CPUINFO = Path("/proc/cpuinfo")
#: Heading, load, and the figure of a row of that load.
COLUMNS: list[tuple[str, str, Callable[[Row], float]]] = [
    ("us a request", "fast", lambda row: row["us"]),
    ("requests a second and core", "fast", lambda row: MICROSECONDS / max(row["us"], 1)),
    ("us an event", "stream", lambda row: row["us"]),
    ("p99 of an unloaded request, ms", "slow", lambda row: row["p99"]),
    ("MB after 300 streams", "stream", lambda row: row["mb"]),
    ("most MB with 5,000 streams", "crowd", lambda row: row["peak_mb"]),
    ("failed of 5,000", "crowd", lambda row: row["bad"]),
]


def _shown(figures: Sequence[float]) -> str:
    digits = 1 if max(figures) < 10 and any(figure % 1 for figure in figures) else 0
    low, high = f"{min(figures):,.{digits}f}", f"{max(figures):,.{digits}f}"
    return low if low == high else f"{low} - {high}"


def _us(rows: Sequence[Row], name: str) -> list[float]:
    """Returns the microseconds of a request, a figure a round."""
    return [row["us"] for row in rows if (row["name"], row["mode"]) == (name, "fast") and row["us"]]


def _where() -> str:
    """Names processor and commit."""
    models = [line for line in CPUINFO.read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else "an unknown processor"
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return f"{len(models)} cores of {model}" + (f" at commit {commit}" if commit else "")


def _lines(rows: Sequence[Row]) -> list[str]:
    over = f"requests a second over {RIVAL}, same round"
    headings = ["router, policy", *(heading for heading, _, _ in COLUMNS), over]
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    for name in dict.fromkeys(row["name"] for row in rows):
        # A policy stands after the router's name; engines alone have neither.
        cells = [name if "," in name else f"{name.replace(' ', ' `', 1)}`"]
        for _, mode, figure in COLUMNS:
            found = [figure(row) for row in rows if (row["name"], row["mode"]) == (name, mode)]
            is_measured = any(row["mb"] for row in rows if row["name"] == name) or mode == "slow"
            cells.append(_shown(found) if found and is_measured else "-")
        ratios = [
            theirs / ours for ours, theirs in zip(_us(rows, name), _us(rows, RIVAL), strict=False)
        ]
        cells.append(f"{min(ratios):.2f} - {max(ratios):.2f}" if ratios else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write_table(rows: Sequence[Row], page: Path | None) -> None:
    """Prints the table, and renews it in a page; None: in no page."""
    lines = _lines(rows)
    print("\n".join(lines), flush=True)
    if page is None:
        return
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    rounds = max(1, len(_us(rows, RIVAL)))
    table = "\n".join([f"Measured on {today}, {_where()}, {rounds} rounds:", "", *lines])
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
