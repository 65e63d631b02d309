"""Owns the GPU kit: the shim's own copies on a GPU, compared and timed without vLLM and without a network.

One command on a machine with torch and an NVIDIA GPU, in the repository's root: `python3 bench/gpu/kit.py --out FILE`.
`--device cpu` runs the same logic without one (its figures mean nothing); `--quick` leaves the timed part out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python-shim")]

import absent_engine  # noqa: E402 - found beside this file

absent_engine.install()

import torch  # noqa: E402
from device import Gpu, Processor  # noqa: E402
from pages import Cache, make_arena  # noqa: E402
from tierkv.connectors.vllm.pages.copies import CudaCopier  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierkv.connectors.vllm.pages.arena import Arena

Json = dict[str, Any]
ROUNDS = 7
#: Rounds of page-by-page copies, because those take a hundred times as long.
PAGES_ROUNDS = 2
#: Bounds: at most 3 % slowdown of a running multiplication, and at least 0.9 of the rate of a plain pinned copy.
SLOWDOWN_MAX = 1.03
RATIO_MIN = 0.9
MATRIX = 8192
MULTIPLICATIONS = 20
#: Below a device's queue of about a thousand commands, because one more would wait for the first.
COPIES_QUEUED = 512
#: Seconds within which the largest arena is pinned.
READY_S = 300


def copy_all(copier: CudaCopier, cache: Cache, *, to_slot: bool) -> None:
    """Copy every block one way and wait for it."""
    (copier.save if to_slot else copier.load)(cache.batch())
    copier.settle()


def prepare(copier: CudaCopier, arena: Arena) -> None:
    """Wait until an arena is pinned."""
    is_ready = threading.Event()
    copier.may_pin()
    copier.prepare(arena, is_ready.set)
    if not is_ready.wait(READY_S):
        raise TimeoutError(f"arena {arena.arena_id} is not ready within {READY_S} s")


def copy_each(cache: Cache, *, to_slot: bool) -> None:
    """Copy every block page by page, as the CPU path does."""
    for block_id, slot in cache.batch().pairs:
        cache.pages.copy(block_id, cache.arena.slot(slot), to_slot=to_slot)


def check_bytes(entry: Json, machine: Any, arena_id: int) -> Json:
    """Save every block, wipe the pages, load them; compare all memory, other blocks included."""
    copier = CudaCopier(machine.device, machine.calls)
    cache = Cache(entry, machine.device, arena_id)
    prepare(copier, cache.arena)
    before = cache.raw.clone()
    done: list[str] = []
    batch = cache.batch()
    batch.when_done.append(lambda: done.append("saved"))
    copier.save(batch)
    copier.settle()
    is_kept = torch.equal(cache.raw, before)
    cache.wipe()
    machine.wait()
    is_wiped = not torch.equal(cache.raw, before)
    half = len(cache.blocks) // 2
    copier.load(cache.batch(cache.blocks[:half]))
    copier.settle()
    untouched = cache.raw.clone()
    copier.load(cache.batch(cache.blocks[:half]))
    copier.settle()
    is_stable = torch.equal(cache.raw, untouched)
    copier.load(cache.batch(cache.blocks[half:]))
    copier.settle()
    is_same = torch.equal(cache.raw, before)
    copier.close()
    is_right = is_kept and is_wiped and is_stable and is_same and done == ["saved"]
    return {"name": entry["name"], "layout": entry["layout"], "is_right": is_right}


def time_copies(entry: Json, machine: Any, arena_id: int) -> Json:
    """Time both directions beside one plain copy of as many pinned bytes, in the same rounds."""
    copier = CudaCopier(machine.device, machine.calls)
    cache = Cache(entry, machine.device, arena_id)
    prepare(copier, cache.arena)
    size = len(cache.blocks) * cache.group.block_bytes
    on_device = torch.empty(size, dtype=torch.uint8, device=machine.device)
    on_host = machine.pinned(size)
    ways = {
        "save": lambda: copy_all(copier, cache, to_slot=True),
        "load": lambda: copy_all(copier, cache, to_slot=False),
        "save, page by page": lambda: copy_each(cache, to_slot=True),
        "load, page by page": lambda: copy_each(cache, to_slot=False),
        "plain out": lambda: on_host.copy_(on_device, non_blocking=True),
        "plain in": lambda: on_device.copy_(on_host, non_blocking=True),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    queued: dict[str, list[float]] = {"save": [], "load": []}
    for number in range(ROUNDS + 1):  # the first one warms up
        for name, way in ways.items():
            if number > PAGES_ROUNDS and "page" in name:
                continue
            seconds = machine.seconds(way)
            if number:
                taken[name].append(seconds)
    for name, way in (("save", copier.save), ("load", copier.load)):
        for _ in range(ROUNDS):
            began = time.perf_counter()
            way(cache.batch())
            queued[name].append(time.perf_counter() - began)
            copier.settle()
    copier.close()
    ratios = {
        name: statistics.median(
            plain / ours for plain, ours in zip(taken[yardstick], taken[name], strict=True)
        )
        for name, yardstick in (("save", "plain out"), ("load", "plain in"))
    }
    rates = {name: size / statistics.median(all_of) / 1e9 for name, all_of in taken.items()}
    return {
        "name": entry["name"],
        "layout": entry["layout"],
        "block_bytes": cache.group.block_bytes,
        "GB/s": {name: round(rate, 2) for name, rate in rates.items()},
        "of a plain copy": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "engine's thread, us a block": {
            name: round(statistics.median(all_of) / len(cache.blocks) * 1e6, 2)
            for name, all_of in queued.items()
        },
        "reaches": min(ratios.values()) >= RATIO_MIN,
    }


def time_pinning(machine: Any, size: int) -> Json:
    """Time the pinning of an arena, and the longest wait of short work with and without it."""
    slot = 2 << 20
    arena = make_arena(99, slot, size // slot)
    arena.populate()
    copier = CudaCopier(machine.device, machine.calls)
    small = torch.ones(1 << 20, device=machine.device)

    def waits(is_over: Callable[[], bool]) -> list[float]:
        found = []
        while not is_over() or not found:
            began = time.perf_counter()
            small.add_(1)
            machine.wait()
            found.append(time.perf_counter() - began)
        return found

    until = time.perf_counter() + 0.5
    alone = waits(lambda: time.perf_counter() > until)
    is_ready = threading.Event()
    copier.may_pin()
    began = time.perf_counter()
    copier.prepare(arena, is_ready.set)
    beside = waits(lambda: is_ready.is_set() or time.perf_counter() > began + READY_S)
    seconds = time.perf_counter() - began
    copier.close()
    worst = {"alone": max(alone), "beside": max(beside)}
    return {
        "bytes": size,
        "GB/s": round(size / seconds / 1e9, 2),
        "longest wait, ms": {name: round(wait * 1e3, 2) for name, wait in worst.items()},
    }


def time_computing(entry: Json, machine: Any, arena_id: int, matrix: int) -> Json:
    """Time multiplications alone and beside blocks that are saved and loaded."""
    copier = CudaCopier(machine.device, machine.calls)
    cache = Cache(entry, machine.device, arena_id)
    prepare(copier, cache.arena)
    dtype = torch.bfloat16 if machine.device.type == "cuda" else torch.float32
    left = torch.randn(matrix, matrix, dtype=dtype, device=machine.device)
    right = torch.randn(matrix, matrix, dtype=dtype, device=machine.device)
    result = torch.empty_like(left)

    def compute() -> None:
        for _ in range(MULTIPLICATIONS):
            torch.mm(left, right, out=result)

    few = cache.blocks[:COPIES_QUEUED]

    def copy() -> None:
        copier.save(cache.batch(few))
        copier.load(cache.batch(few))

    copy_all(copier, cache, to_slot=True)
    compute()
    pairs = []
    for _ in range(ROUNDS):
        alone = machine.seconds(compute)
        beside = machine.seconds(compute, beside=copy)
        copier.settle()
        pairs.append(beside / alone)
    copier.close()
    slowdown = statistics.median(pairs)
    return {
        "name": entry["name"],
        "layout": entry["layout"],
        "slowdown": round(slowdown, 4),
        "reaches": slowdown <= SLOWDOWN_MAX,
    }


def run(machine: Any, *, is_quick: bool) -> Json:
    """Return the report of all measurements."""
    known = json.loads((HERE / "layouts.json").read_text())
    of_size: dict[str, list[Json]] = {"small": [], "large": []}
    for entry in known["entries"]:
        of_size[entry["size"]].append(entry)
    report: Json = {"device": machine.name, "torch": torch.__version__, "vllm": known["vllm"]}
    report["bytes"] = [check_bytes(entry, machine, at) for at, entry in enumerate(of_size["small"])]
    if is_quick:
        entry = of_size["small"][0]
        report["copies"] = [time_copies(entry, machine, 1)]
        report["computing"] = [time_computing(entry, machine, 1, 64)]
        report["pinning"] = time_pinning(machine, 64 << 20)
        return report
    report["copies"] = []
    for at, entry in enumerate(of_size["large"]):
        report["copies"].append(time_copies(entry, machine, at))
        sys.stderr.write(f"{report['copies'][-1]}\n")
    report["computing"] = [time_computing(of_size["large"][0], machine, 1, MATRIX)]
    report["pinning"] = time_pinning(machine, 8 << 30)
    return report


def main(arguments: list[str] | None = None) -> int:
    """Write the report; return 1 where a byte was wrong."""
    parser = argparse.ArgumentParser(prog="bench/gpu/kit.py")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="bytes only, and one round of figures")
    parser.add_argument("--out", type=Path, help="a file for the report, as JSON")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; `--device cpu` tries the kit without one")
    report = run(Gpu() if given.device == "cuda" else Processor(), is_quick=given.quick)
    text = json.dumps(report, indent=2) + "\n"
    if given.out is not None:
        given.out.write_text(text)
    sys.stdout.write(text)
    return int(not all(found["is_right"] for found in report["bytes"]))


if __name__ == "__main__":
    sys.exit(main())
