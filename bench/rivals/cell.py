"""One rival and one shape in a process of its own: runs one restore, or one series of calls, on each command.

Started by run.py: `cell.py RIVAL BLOCK_BYTES BLOCKS LANES`. Each line on its input is a command (`restore`, `latency`,
`lookup`, `end`), each line on its output the JSON of what was measured; the first line says what storing took.
"""

import ctypes
import json
import os
import resource
import sys
import time
from hashlib import sha256
from typing import Any

import psutil
from rivals import create
from rivals.base import Arena, Block, Rival, Setup

PREFIXES = 3  # restored in turn, so that no round finds its source still in a cache
LATENCY_SAMPLES = 300
LOOKUP_KEYS = 2000
LOOKUP_BLOCK_BYTES = 4096
LOOKUP_ROUNDS = 100
LOOKUP_SECONDS = 2
#: Largest error of INT8 on bf16 numbers below 2: three steps of 2/127. 60,000 pages of 64 KiB had 0.019 at most.
LOSSY_ERROR_MAX = 3 * 2 / 127


class Cell:
    """A rival with its prefixes stored, each verified once."""

    def __init__(self, name: str, block_bytes: int, blocks: int, lanes: int) -> None:
        half = block_bytes * blocks
        self.arena = Arena(2 * half)
        self.arena.view[:half] = finite_bf16(half)
        self.source = self.arena.blocks(0, block_bytes, blocks)
        self.target = self.arena.blocks(half, block_bytes, blocks)
        self.rival = create(name)
        self.rival.start(Setup(self.arena, lanes, block_bytes, blocks))
        self.turn = 0

    def store(self) -> dict[str, Any]:
        # Each prefix has the blocks in another order, so that a block under the wrong key is noticed.
        self.prefixes = [
            (new_keys(f"prefix {n}", len(self.source)), self.source[n:] + self.source[:n])
            for n in range(PREFIXES)
        ]
        payload = sum(len(block.view) for block in self.source)
        seconds = [self.put(*prefix) for prefix in self.prefixes]
        for prefix in self.prefixes:  # also warms up
            self.verify(*prefix)
        return {"store_gb_s": [payload / each / 1e9 for each in seconds]}

    def put(self, keys: list[str], blocks: list[Block]) -> float:
        self.rival.stage(keys, blocks)
        return timed(self.rival.put, keys, blocks)

    def verify(self, keys: list[str], expected: list[Block]) -> None:
        for block in self.target:
            ctypes.memset(block.address, 0, len(block.view))
        self.rival.get_into(keys, self.target)
        for key, got, wanted in zip(keys, self.rival.landed(self.target), expected, strict=True):
            if not is_same(got, wanted.view, self.rival.is_exact):
                where = difference(got, wanted.view)
                raise AssertionError(f"get_into() returned wrong bytes for {key}: {where}")

    def restore(self) -> dict[str, Any]:
        """Restore a whole prefix once; return its speed, its cost, and the machine's other load."""
        keys, _ = self.prefixes[self.turn % PREFIXES]
        self.turn += 1
        gigabytes = sum(len(block.view) for block in self.target) / 1e9
        before = usage(self.rival)
        seconds = timed(self.rival.get_into, keys, self.target)
        spent = {name: value - before[name] for name, value in usage(self.rival).items()}
        if spent["local"] > 0:
            raise AssertionError("a restore did not leave the client's side")
        return {
            "gb_s": gigabytes / seconds,
            "client_cpu_s_per_gb": spent["client"] / gigabytes,
            "server_cpu_s_per_gb": spent["server"] / gigabytes,
            "loopback_bytes_per_byte": spent["loopback"] / gigabytes / 1e9,
            "foreign_cores": max(0, spent["machine"] - spent["client"] - spent["server"]) / seconds,
        }

    def latency(self) -> dict[str, Any]:
        """Time restores of single blocks, from the prefix restored longest ago."""
        keys, _ = self.prefixes[self.turn % PREFIXES]
        calls = [keys[number % len(keys)] for number in range(min(LATENCY_SAMPLES, len(keys)))]
        seconds = [timed(self.rival.get_into, [key], self.target[:1]) for key in calls]
        return {"latency_ms": [1e3 * each for each in seconds]}

    def lookup(self) -> dict[str, Any]:
        """Time batches of existence checks, with the first half of the keys stored."""
        half = LOOKUP_KEYS // 2
        keys = new_keys("lookup", LOOKUP_KEYS)
        self.put(keys[:half], self.arena.blocks(0, LOOKUP_BLOCK_BYTES, half))
        if self.rival.exists(keys) != [True] * half + [False] * half:
            raise AssertionError("exists() gave a wrong answer")
        lookups: list[float] = []
        end = time.monotonic() + LOOKUP_SECONDS
        while len(lookups) < LOOKUP_ROUNDS and time.monotonic() < end:
            lookups.append(1e3 * timed(self.rival.exists, keys))
        return {"lookup_ms": lookups}


def finite_bf16(size: int) -> bytes:
    """Return random bytes that are finite bf16 numbers, so that a codec of numbers accepts them."""
    data = bytearray(os.urandom(size))
    table = bytes(value & 0xBF for value in range(256))
    data[1::2] = data[1::2].translate(table)
    return bytes(data)


def is_same(got: memoryview, wanted: memoryview, is_exact: bool) -> bool:
    if is_exact:
        return bytes(got) == bytes(wanted)
    return bool(errors(got, wanted).max() <= LOSSY_ERROR_MAX)


def errors(got: memoryview, wanted: memoryview) -> Any:
    import torch  # noqa: PLC0415 - only here, and heavy

    numbers = [
        torch.frombuffer(bytearray(each), dtype=torch.bfloat16).float() for each in (got, wanted)
    ]
    return (numbers[0] - numbers[1]).abs()


def difference(got: memoryview, wanted: memoryview) -> str:
    """Say how many numbers are wrong, where, and by how much."""
    error = errors(got, wanted)
    wrong = (error > LOSSY_ERROR_MAX).nonzero().flatten().tolist()
    places = f"from {wrong[0]} to {wrong[-1]}" if wrong else "none"
    return f"largest error {error.max():.4f}, {len(wrong)} of {len(error)} numbers wrong, {places}"


def usage(rival: Rival) -> dict[str, float]:
    """Return CPU seconds of the client, its servers and the machine (without niced work, which yields)."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    servers = [psutil.Process(pid).cpu_times() for pid in rival.server_pids()]
    machine = psutil.cpu_times()
    return {
        "client": own.ru_utime + own.ru_stime,
        "server": sum(times.user + times.system for times in servers),
        "machine": machine.user + machine.system + machine.irq + machine.softirq + machine.steal,
        "loopback": psutil.net_io_counters(pernic=True)["lo"].bytes_recv,
        "local": rival.local_bytes(),
    }


def new_keys(label: str, count: int) -> list[str]:
    return [sha256(f"{label}: {number}".encode()).hexdigest() for number in range(count)]


def timed(work: Any, *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def main() -> None:
    name, *numbers = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not pass for an answer
    cell = Cell(name, *map(int, numbers))
    try:
        print(json.dumps(cell.store()), file=answers)
        for line in sys.stdin:
            if line.strip() == "end":
                break
            print(json.dumps(getattr(cell, line.strip())()), file=answers)
    finally:
        cell.rival.stop()


if __name__ == "__main__":
    main()
