"""Owns the thinning of CUDA libraries: kernels of other architectures become zeros, which compress to nothing.

Source of the layout: the fat binary section's header (magic 0xBA55ED50, version 1) and its entries, each with kind
(1: PTX, 2: machine code), length of its header, length of its content, and the architecture at byte 28.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER = struct.Struct("<4xHHQ")
_ENTRY = struct.Struct("<HHIQ12xI")
_MACHINE_CODE = 2

#: Begin and end of an entry's content, its kind, its architecture.
Entry = tuple[int, int, int, int]


def thin(library: bytearray, architecture: int) -> int:
    """Keep the kernels of one architecture (90 for Hopper), or PTX where it has none; return the bytes zeroed."""
    zeroed = 0
    for entries in _containers(library):
        has_own = any(kind == _MACHINE_CODE and arch == architecture for *_, kind, arch in entries)
        for first, last, kind, arch in entries:
            is_own = kind == _MACHINE_CODE and arch == architecture
            if is_own or (kind != _MACHINE_CODE and not has_own):
                continue
            library[first:last] = bytes(last - first)
            zeroed += last - first
    return zeroed


def _containers(library: bytearray) -> Iterator[list[Entry]]:
    at = library.find(_MAGIC)
    while at >= 0:
        version, header, size = _HEADER.unpack_from(library, at)
        end = at + header + size
        if version != 1 or header != 16 or end > len(library):
            at = library.find(_MAGIC, at + 4)
            continue
        yield list(_entries(library, at + header, end))
        at = library.find(_MAGIC, end)


def _entries(library: bytearray, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, size, arch = _ENTRY.unpack_from(library, at)
        if header == 0:
            return
        yield at + header, at + header + size, kind, arch
        at += header + size
