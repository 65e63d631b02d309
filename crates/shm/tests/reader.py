"""Owns a second reader of a shared region, written from the layout alone; the tests compare what it finds."""

import struct
import sys
from pathlib import Path

SUPERBLOCK = struct.Struct("<8sIIQQQQQQQI")
ENTRY = struct.Struct("<QQQQQQQQ64s")
LOCK_AT, BITMAP_AT, READY = 4096, 24576, 3


def main(path: str) -> None:
    region = Path(path).read_bytes()
    fields = SUPERBLOCK.unpack_from(region)
    magic, version, _, region_bytes, chunk_bytes, chunks, entries, index_at, payload_at, _, _ = (
        fields
    )
    assert (magic, version, region_bytes) == (b"TKVSHM\0\0", 4, len(region))
    bitmap = int.from_bytes(region[BITMAP_AT : BITMAP_AT + (chunks + 7) // 8], "little")
    sums, pinned = [], 0
    for index in range(entries):
        state, pins, chunk, length, *_ = ENTRY.unpack_from(region, index_at + index * ENTRY.size)
        if state == READY:
            start = payload_at + chunk * chunk_bytes
            sums.append(sum(region[start : start + length]))
            pinned += pins != 0
    for name, number in [
        ("chunks", chunks),
        ("entries", entries),
        ("lock_at", LOCK_AT),
        ("bitmap_at", BITMAP_AT),
        ("ready", len(sums)),
        ("pinned", pinned),
        ("used_chunks", bitmap.bit_count()),
        *(("sum", total) for total in sorted(sums)),
    ]:
        sys.stdout.write(f"{name} {number}\n")


main(sys.argv[1])
