"""Generated records are read as by Rust; crates/core/tests/generated.rs says how they are made."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support.record import HEADER_BYTES, RecordRefusedError, crc32c, verify_record

TEST = Path(__file__).resolve().parents[2] / "test"
SEED = 20
PAYLOAD_CHECKSUM_AT, HEADER_CHECKSUM_AT = 184, 188
BITS_64 = 2**64 - 1
# Width by offset.
FIELDS = list(
    (
        {0: 4, 4: 2, 6: 2, 8: 1, 9: 1, 10: 1, 11: 1, 12: 2, 14: 2, 16: 2, 18: 1, 19: 1}
        | {20: 4, 24: 4, 28: 4, 32: 4, 36: 4, 40: 8, 48: 8, 56: 8}
        | {64: 8, 96: 8, 128: 8, 160: 8, 176: 8}
    ).items()
)
EDGES = [0, 1, 2, 3, 4, 16, 255, 65_535, 2**31, 2**32 - 1, 2**53, 2**63]


def splitmix64(state: int) -> Iterator[int]:
    while True:
        state = (state + 0x9E3779B97F4A7C15) & BITS_64
        mixed = state
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & BITS_64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & BITS_64
        yield mixed ^ (mixed >> 31)


def edit(record: bytearray, numbers: Iterator[int]) -> None:
    at, width = FIELDS[next(numbers) % len(FIELDS)]
    how, drawn = next(numbers) % 3, next(numbers)
    value = int.from_bytes(record[at : at + width], "little") + 1
    if how == 0:
        value = EDGES[drawn % len(EDGES)]
    elif how == 1:
        value = drawn >> 11
    record[at : at + width] = (value & BITS_64).to_bytes(8, "little")[:width]


def make_case(bases: list[bytes], numbers: Iterator[int]) -> bytes:
    record = bytearray(bases[next(numbers) % len(bases)])
    for _ in range(next(numbers) % 3):
        edit(record, numbers)
    end, drawn = next(numbers) % 8, next(numbers)
    if end == 0:
        record[HEADER_BYTES + drawn % (len(record) - HEADER_BYTES)] ^= 1 << ((drawn >> 32) % 8)
    elif end == 1:
        del record[drawn % len(record) :]
    elif end == 2:
        record += bytes(drawn % 5)
    signed = next(numbers) % 8
    if len(record) >= HEADER_BYTES and signed >= 2:
        if signed >= 4:
            checksum = crc32c(bytes(record[HEADER_BYTES:]))
            record[PAYLOAD_CHECKSUM_AT:HEADER_CHECKSUM_AT] = checksum.to_bytes(4, "little")
        checksum = crc32c(bytes(record[:HEADER_CHECKSUM_AT]))
        record[HEADER_CHECKSUM_AT:HEADER_BYTES] = checksum.to_bytes(4, "little")
    return bytes(record)


@pytest.mark.nightly
def test_ten_thousand_generated_records_are_read_as_by_rust() -> None:
    wanted = json.loads((TEST / "core" / "generated.json").read_text())
    paths = sorted((TEST / "vectors").glob("*.record.bin"))
    bases = [path.read_bytes() for path in paths if not path.name.startswith("refused-")]
    numbers, taken, lines = splitmix64(SEED), 0, []
    for _ in range(wanted["cases"]):
        record = make_case(bases, numbers)
        try:
            header, _payload = verify_record(record)
        except RecordRefusedError as refused:
            verdict = refused.refusal
        else:
            taken += 1
            fields = dataclasses.astuple(header)
            verdict = " ".join(v.hex() if isinstance(v, bytes) else str(v) for v in fields)
        lines.append(f"{crc32c(record):08x} {verdict}\n")
    sha256 = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert {"cases": len(lines), "taken": taken, "sha256": sha256} == wanted
