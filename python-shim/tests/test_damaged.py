"""A million damaged frames and settings, and for every change a twentieth: each is read or refused in our own way.

TIERKV_TEST_SEED repeats a run. Hypothesis (test_decoders.py) thinks of what is odd; here what counts is their number.
"""

import os
import random
import secrets
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tierkv.connectors.vllm.link.frames import FrameDecoder, FrameError, encode
from tierkv.connectors.vllm.link.settings import load_settings

from .support.length import cases

SEED = int(os.environ.get("TIERKV_TEST_SEED", secrets.randbelow(2**31)))
WHOLE = (895_000, 5_000, 100_000)
assert sum(WHOLE) == 1_000_000
FRAMES, FILES, LINES = map(cases, WHOLE)

HASH = bytes(range(32))
#: What a sidecar sends, and what it never would.
MESSAGES: list[dict[str, Any]] = [
    {"t": "welcome", "protocol": 2, "sidecar": "0.1.0", "arena": None, "stall_ms": 500},
    {"t": "arena", "arena": 1, "bytes": 2**33, "slot_bytes": 65_536},
    {"t": "held", "plan": 7, "groups": [{"group": 0, "held": 12, "bits": b"\xff\x01"}]},
    {"t": "placed", "plan": 7, "arena": 1, "group": 0, "first": 3, "slots": [1, 2, 3], "local": 1},
    {"t": "done", "plan": 7, "reason": "whole", "us": 1_500},
    {"t": "credits", "arena": 1, "slots": list(range(40))},
    {"t": "refuse", "message": "ü" * 40, "code": "BAD_FRAME"},
    {"t": "pong", "n": -1, "of": [2**63, -(2**63), 0.5, float("inf"), True, None, {}, []]},
]
BODIES = [encode(message) for message in MESSAGES]
PIECES = ["[", "]", "=", '"', "'", "\n", "#", "{", "}", "true", "1e9", "\0", '"""', "socket", "ü"]
TOML = '[sidecar]\nsocket = "/run/x.sock"\nautostart = false\n[turbo_quant]\nstates = "raw"\n'
VALUES: list[Any] = [None, True, 0, -1, 2**70, 0.5, "", "x", b"", [], {}, "\0", float("nan")]


def damaged(good: bytes, dice: random.Random) -> bytes:
    """Up to three bytes changed, repeated, lost or added; or cut."""
    data = bytearray(good)
    for _ in range(1 + int(dice.random() * 3)):
        at = int(dice.random() * len(data)) if data else 0
        how = dice.random()
        if how < 0.6 and data:
            data[at] = int(dice.random() * 256)
        elif how < 0.75:
            del data[at : at + 1 + int(dice.random() * 4)]
        elif how < 0.9:
            data[at:at] = data[at : at + 8] or b"\xc1"
        else:
            del data[at:]
    return bytes(data)


def count(cases: int, refusal: type[Exception], read: Callable[[random.Random], object]) -> int:
    """How many of so many were taken; any other exception than this one ends the test."""
    dice = random.Random(SEED)
    taken = 0
    for _ in range(cases):
        try:
            read(dice)
            taken += 1
        except refusal:
            continue
    return taken


@pytest.fixture(autouse=True)
def seed() -> None:
    print(f"run it again with TIERKV_TEST_SEED={SEED}")  # noqa: T201 -- pytest shows it when the test fails


def test_f10_damaged_frames_are_read_or_refused() -> None:
    def read(dice: random.Random) -> None:
        body = damaged(BODIES[int(dice.random() * len(BODIES))][4:], dice)
        length = len(body) if dice.random() < 0.8 else int(dice.random() * 2**32)
        for frame in FrameDecoder().feed(struct.pack("<I", length) + body):
            assert isinstance(frame["t"], str)

    assert 0 < count(FRAMES, FrameError, read) < FRAMES


def test_f10_damaged_settings_files_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "tierkv.toml"

    def read(dice: random.Random) -> None:
        text = TOML
        for _ in range(1 + int(dice.random() * 3)):
            at = int(dice.random() * len(text))
            text = text[:at] + dice.choice(PIECES) + text[at + int(dice.random() * 5) :]
        path.write_bytes(text.encode())
        assert load_settings({"config_path": str(path)}).socket

    assert 0 < count(FILES, ValueError, read) < FILES


def test_f10_odd_launch_lines_are_read_or_refused() -> None:
    keys = ["config_path", "socket", "autostart", "sockets", ""]

    def read(dice: random.Random) -> None:
        given = {dice.choice(keys): dice.choice(VALUES) for _ in range(int(dice.random() * 4))}
        assert load_settings(given).socket

    assert 0 < count(LINES, ValueError, read) < LINES
