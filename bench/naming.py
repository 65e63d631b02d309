"""Owns the measuring of naming: digests of whole files beside SHA-256 by one thread, and the time that a start waits.

Prints one JSON line: bytes, threads, and seconds of each round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from lab.checkpoint import Spec, write_checkpoint
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.resolved import resolve
from tierkv.connectors.vllm.naming.digests import DigestStore, FileDigests, threads
from vllm.engine.arg_utils import EngineArgs


def seconds_of(paths: list[Path], store: DigestStore) -> float:
    """Return the seconds that naming the files takes."""
    began = time.perf_counter()
    FileDigests(store, time.time_ns()).read(paths)
    return time.perf_counter() - began


def bare_seconds(paths: list[Path]) -> float:
    """Return the seconds that one thread takes to hash the files."""
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            hashlib.file_digest(file, "sha256")
    return time.perf_counter() - began


def start_seconds(folder: Path) -> float:
    """Return the seconds that an engine's start waits for the first digest of its configuration."""
    spec = Spec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, vocab=512, dtype="float32")
    write_checkpoint(folder, spec)
    config = EngineArgs(model=str(folder), dtype="float32", skip_tokenizer_init=True)
    made = config.create_engine_config()
    began = time.perf_counter()
    resolve(made)
    return time.perf_counter() - began


def main() -> None:
    """Read the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--file-bytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"model-{number}.safetensors" for number in range(options.files)]
        chunk = os.urandom(1 << 20)
        for path in paths:
            with path.open("wb") as file:
                for _ in range(options.file_bytes // len(chunk)):
                    file.write(chunk)
        # Wait, because recently changed files are read again next time.
        time.sleep(limits.DIGEST_SETTLED_NS / 1e9 + 0.1)
        first, again, bare = [], [], []
        for number in range(options.rounds):
            state = Path(folder) / f"state-{number}"
            bare.append(bare_seconds(paths))
            first.append(seconds_of(paths, DigestStore(state)))
            again.append(seconds_of(paths, DigestStore(state)))
        start = start_seconds(Path(folder) / "tiny")
        size = sum(path.stat().st_size for path in paths)
    result = {"bytes": size, "threads": threads(), "first": first, "again": again, "bare": bare}
    result["start"] = start
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
