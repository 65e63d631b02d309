"""Evaluation of the samples: medians, ratios round by round with their 95 % interval, and the tables."""

import random
from statistics import mean, median, quantiles
from typing import Any

RESAMPLES = 4000
SEED = 1
OURS = ("tierkv", "tierkv-int8")

Row = dict[str, Any]


def summarize(shape: tuple[int, int], cells: dict[str, Row]) -> list[Row]:
    """Return one row for each rival of one shape."""
    size, count = shape
    rows = []
    for name, cell in cells.items():
        restores = cell["restores"]
        lists = {key: cell[key] for key in ("store_gb_s", "latency_ms", "lookup_ms") if key in cell}
        row = {"rival": name, "block_bytes": size, "blocks": count, "lanes": cell["lanes"]}
        row |= {key: spread(values) for key, values in lists.items()}
        row["restore_gb_s"] = spread([restore["gb_s"] for restore in restores])
        row |= {key: mean(each[key] for each in restores) for key in restores[0] if key != "gb_s"}
        row["over"] = {
            ours: ratio(cells[ours]["restores"], restores)
            for ours in OURS
            if ours in cells and name not in OURS
        }
        rows.append(row)
    return rows


def ratio(ours: list[Row], theirs: list[Row]) -> Row:
    """Return the median of the ratios round by round, and its 95 % interval by resampling the rounds."""
    ratios = [a["gb_s"] / b["gb_s"] for a, b in zip(ours, theirs, strict=True)]
    dice = random.Random(SEED)
    medians = sorted(median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    low, high = (medians[int(RESAMPLES * share)] for share in (0.025, 0.975))
    return {"median": median(ratios), "low": low, "high": high}


def spread(values: list[float]) -> Row:
    percentiles = quantiles(values, n=100, method="inclusive")
    return {
        "median": median(values),
        "p99": percentiles[98],
        "min": min(values),
        "max": max(values),
        "samples": values,
    }


def markdown(rows: list[Row]) -> list[str]:
    """Return one table: the results of each rival, and the ratio of tierKV in the same rounds."""
    head = [
        "blocks",
        "store",
        "lanes",
        "restore GB/s (min-max)",
        "store GB/s",
        "CPU s/GB client + server",
    ]
    head += [
        "one block ms p50 / p99",
        "lookup ms p50 / p99",
        "tierKV raw over it",
        "INT8 over it",
        "other work, cores",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(cells(row))} |" for row in rows]


def cells(row: Row) -> list[str]:
    restore, latency, lookup = row["restore_gb_s"], row["latency_ms"], row.get("lookup_ms")
    return [
        f"{row['blocks']} x {row['block_bytes'] >> 10} KiB",
        row["rival"],
        str(row["lanes"]),
        f"**{restore['median']:.2f}** ({restore['min']:.2f}-{restore['max']:.2f})",
        f"{row['store_gb_s']['median']:.2f}",
        f"{row['client_cpu_s_per_gb']:.2f} + {row['server_cpu_s_per_gb']:.2f}",
        f"{latency['median']:.2f} / {latency['p99']:.2f}",
        f"{lookup['median']:.1f} / {lookup['p99']:.1f}" if lookup else "",
        *(show_ratio(row["over"].get(ours)) for ours in OURS),
        f"{row['foreign_cores']:.2f}",
    ]


def show_ratio(found: Row | None) -> str:
    return (
        "" if found is None else f"{found['median']:.2f} ({found['low']:.2f}-{found['high']:.2f})"
    )
