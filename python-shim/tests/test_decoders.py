"""Decoders meet anything: no bytes make them fail in any way but their own. Seeded; TIERKV_TEST_SEED repeats a run."""

import os
import random
import secrets
import struct
from pathlib import Path

import msgspec
import pytest
from tierkv.connectors.vllm.frames import FrameDecoder, FrameError
from tierkv.record import RecordRefusedError, parse_record_header, verify_record

GOLDEN = Path(__file__).parents[2] / "test" / "vectors" / "smallest.record.bin"
CASES = 250_000


@pytest.fixture
def dice() -> random.Random:
    seed = int(os.environ.get("TIERKV_TEST_SEED", secrets.randbelow(2**31)))
    print(f"run it again with TIERKV_TEST_SEED={seed}")  # noqa: T201 -- pytest shows it when the test fails
    return random.Random(seed)


def mangled(dice: random.Random, good: bytes) -> bytes:
    """Change some bytes of a copy, cut it or make it longer."""
    copy = bytearray(good)
    for _ in range(dice.randrange(1, 5)):
        copy[dice.randrange(len(copy))] = dice.randrange(256)
    kind = dice.randrange(6)
    if kind == 0:
        return bytes(copy[: dice.randrange(len(copy))])
    return bytes(copy) + dice.randbytes(30) if kind == 1 else bytes(copy)


def test_f10_frames_of_any_bytes_are_read_or_refused(dice: random.Random) -> None:
    good = msgspec.msgpack.encode({"t": "held", "req": "r", "groups": [{"group": 0, "held": b"x"}]})
    for number in range(CASES):
        body = mangled(dice, good) if number % 2 else dice.randbytes(dice.randrange(60))
        length = dice.getrandbits(32) if number % 16 == 0 else len(body)
        try:
            frames = FrameDecoder().feed(struct.pack("<I", length) + body)
        except FrameError:
            continue
        assert all(isinstance(frame["t"], str) for frame in frames)


def test_f10_records_of_any_bytes_are_read_or_refused(dice: random.Random) -> None:
    good = GOLDEN.read_bytes()
    for _ in range(CASES // 10):  # a checksum byte by byte takes its time here
        damaged = mangled(dice, good)
        for read in (parse_record_header, verify_record):
            try:
                read(damaged)
            except RecordRefusedError:
                continue
