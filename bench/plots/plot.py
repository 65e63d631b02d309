"""Owns the pictures in docs/images: plots of bench/results, one for light and one for dark pages.

Needs the packages of bench/plots/requirements.txt; docs/performance.md has the command.
"""

import json
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"
#: Text and grid by page colour; lines have one colour for both.
INKS = {"light": ("#24292f", "#d0d7de"), "dark": ("#e6edf3", "#444c56")}
COLOURS = ("#8c564b", "#d95f02", "#1b9e77", "#3a86d8")


def gains(axes: Axes) -> None:
    """Draws the first token with tierKV over that without, by length of the prompt, a line for each link."""
    points: dict[str, dict[int, float]] = {}
    for path in sorted(RESULTS.glob("never-slower-*.json")):
        for figure in json.loads(path.read_text())["figures"]:
            found = re.fullmatch(r"(\d+) Mb/s, (\d+) tokens", figure["name"])
            if found:
                points.setdefault(found[1], {})[int(found[2])] = figure["ratio"]
    links = sorted(points, key=int)
    for link, colour in zip(links, COLOURS, strict=False):
        lengths = sorted(points[link])
        ratios = [points[link][tokens] for tokens in lengths]
        axes.plot(lengths, ratios, marker="o", color=colour, label=f"{link} Mb/s")
    axes.axhline(1, linewidth=0.8, linestyle="--", color="gray")
    axes.set(xscale="log", xlabel="prompt, tokens", ylabel="first token, with tierKV over without")
    axes.set_ylim(0, 1.2)
    axes.set_xticks([100, 500, 1000, 2000, 4000], ["100", "500", "1,000", "2,000", "4,000"])
    axes.minorticks_off()
    axes.legend(title="link", frameon=False, loc="lower left")


def conversations(axes: Axes) -> None:
    """Draws the share of prompt tokens that an engine did not compute, by what kept its blocks."""
    kinds = {
        "vLLM alone": "vLLM alone",
        "vLLM's offloading to host memory": "vLLM's offloading,\nwith a CPU worker of ours",
        "tierKV, own vault, raw": "tierKV, own vault",
        "tierKV, raw": "tierKV, vault over TCP",
        "a cache of everything": "a cache of everything",
    }
    loads = {
        "16 of 4 turns of 128 tokens": "128 tokens a turn",
        "12 of 4 turns of 512 tokens": "512 tokens a turn",
    }
    figures = json.loads((RESULTS / "conversations.json").read_text())["figures"]
    shares = {figure["name"]: figure["value"] for figure in figures}
    width = 0.38
    for at, (load, label) in enumerate(loads.items()):
        values = [shares[f"{load}, {kind}: prompt tokens not computed"] for kind in kinds]
        places = [place + (at - 0.5) * width for place in range(len(kinds))]
        bars = axes.barh(places, values, height=width * 0.92, color=COLOURS[2 + at], label=label)
        axes.bar_label(bars, fmt="%.0f %%", padding=3)
    axes.set_yticks(range(len(kinds)), list(kinds.values()))
    axes.invert_yaxis()
    axes.set(xlabel="prompt tokens not computed, %", xlim=(0, 70))
    axes.legend(frameon=False, loc="upper right")


def codecs(axes: Axes) -> None:
    """Draws the divergence that each codec causes, by model: transformers, float32, prefixes of 512 tokens."""
    kinds = {
        "int8": "int8: one scale a vector",
        "int8-mean-had": "int8-mean-had, tierKV's",
        "bf16": "rounding to bf16",
    }
    table = (RESULTS / "fidelity" / "published.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    found = {
        (row[1], row[2]): float(row[5].split()[0]) for row in rows if len(row) > 5 and "±" in row[5]
    }
    models = sorted({model for model, _ in found if model.endswith(", 512")})
    height = 0.26
    for at, (kind, label) in enumerate(kinds.items()):
        places = [place + (at - 1) * height for place in range(len(models))]
        values = [found[model, kind] for model in models]
        axes.barh(places, values, height=height * 0.9, color=COLOURS[1 + at], label=label)
    axes.axvline(1e-4, linewidth=0.8, linestyle="--", color="gray", label="bound of a default")
    axes.set_yticks(range(len(models)), [model.removesuffix(", 512") for model in models])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="divergence of the next token, nats (mean)", xlim=(5e-6, 2e-2))
    axes.legend(frameon=False, loc="lower right", fontsize="small")


PLOTS = {"gain": gains, "conversations": conversations, "codecs": codecs}


def main() -> None:
    """Writes each plot twice."""
    for name, draw in PLOTS.items():
        for page, (ink, grid) in INKS.items():
            style = {
                "svg.hashsalt": name,
                "svg.fonttype": "none",
                "font.family": "sans-serif",
                "text.color": ink,
                "axes.labelcolor": ink,
                "axes.edgecolor": grid,
                "xtick.color": ink,
                "ytick.color": ink,
                "axes.spines.top": False,
                "axes.spines.right": False,
            }
            with mpl.rc_context(style):
                figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
                draw(axes)
                path = IMAGES / f"{name}-{page}.svg"
                figure.savefig(path, transparent=True, metadata={"Date": None})
                plt.close(figure)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
