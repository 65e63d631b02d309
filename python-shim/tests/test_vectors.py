"""Owns the proof that the Python reader takes and refuses exactly what the other readers do."""

import dataclasses
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .support.record import (
    HEADER_BYTES,
    RecordHeader,
    RecordRefusedError,
    crc32c,
    parse_record_header,
    verify_record,
)

VECTORS = Path(__file__).resolve().parents[2] / "test" / "vectors"
MANIFEST: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text())


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _wanted(header: dict[str, Any]) -> dict[str, Any]:
    hashes = {"namespace", "blockHash", "parentHash"}
    return {
        _snake(name): bytes.fromhex(value) if name in hashes else value
        for name, value in header.items()
    }


def _canonical(page: bytes, geometry: dict[str, int]) -> bytes:
    """The raw payload of `page`, as docs/protocol.md words it: layer, part, head, token."""
    if geometry["layout"] == 1:
        return page
    element = {1: 2, 2: 2, 3: 4}[geometry["dtype"]]
    vectors = [
        (geometry[f"{part}Offset"], geometry[dim] * element)
        for part, dim in (("key", "dimK"), ("value", "dimV"))
    ]

    def runs() -> Iterator[bytes]:
        for layer in range(geometry["layers"]):
            for offset, size in vectors:
                for head in range(geometry["heads"]):
                    for token in range(geometry["tokens"]):
                        start = layer * geometry["layerBytes"] + offset
                        start += head * geometry["headStride"] + token * geometry["tokenStride"]
                        yield page[start : start + size]

    return b"".join(runs())


def _float32(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def _element(dtype: int, value: float) -> bytes:
    """`value`, which float32 holds, as an element: the nearest, ties to even, never inf."""
    if dtype == 3:
        return struct.pack("<f", value)
    if dtype == 2:
        return struct.pack("<e", max(-65504.0, min(65504.0, value)))
    bits = _float32(value)
    bits += 0x7FFF + (bits >> 16 & 1)
    largest = 0x7F7F if value > 0 else 0xFF7F
    return min(bits >> 16, largest).to_bytes(2, "little")


def _turned(values: list[int]) -> list[int]:
    """Sums of the two halves, turned, and then their differences, turned."""
    if len(values) == 1:
        return values
    half = len(values) // 2
    pairs = list(zip(values[:half], values[half:], strict=True))
    return _turned([one + other for one, other in pairs]) + _turned(
        [one - other for one, other in pairs]
    )


def _dequantised(payload: bytes, header: RecordHeader) -> bytes:
    """The raw payload that comes of a payload of codec 2."""
    out, at = b"", 0
    for _ in range(header.layers):
        for dim in (header.dim_k, header.dim_v)[: header.parts]:
            for _ in range(header.heads):
                vectors, at = _vectors(payload, at, header.tokens, dim)
                for factor, codes in vectors:
                    out += b"".join(_element(header.dtype, code * factor) for code in codes)
    assert at == len(payload)
    return out


def _vectors(
    payload: bytes, at: int, count: int, dim: int
) -> tuple[list[tuple[float, list[int]]], int]:
    """Scale and codes of `count` vectors, all scales first, and where they end."""
    scales = struct.unpack_from(f"<{count}H", payload, at)
    at += count * 2
    vectors = []
    for scale in scales:
        (factor,) = struct.unpack("<f", (scale << 16).to_bytes(4, "little"))
        vectors.append((factor, list(struct.unpack_from(f"<{dim}b", payload, at))))
        at += dim
    return vectors, at


def _turned_back(factor: float, codes: list[int]) -> list[float]:
    """Codes of codec 4 as values, which float32 holds."""
    block = min(len(codes) & -len(codes), 256)
    blocks = (_turned(codes[start : start + block]) for start in range(0, len(codes), block))
    return [value * factor for values in blocks for value in values]


def _with_mean(payload: bytes, header: RecordHeader) -> bytes:
    """The raw payload that comes of a payload of codec 4."""
    out, at = b"", 0
    element = {1: 2, 2: 2, 3: 4}[header.dtype]
    is_first = header.parent_hash == bytes(32)
    for _ in range(header.layers):
        for part, dim in enumerate((header.dim_k, header.dim_v)[: header.parts]):
            for _ in range(header.heads):
                runs = -(-header.tokens // MEAN_TOKENS) if part == 0 else 0
                coded, at = _vectors(payload, at, runs, dim)
                means = [_turned_back(*mean) for mean in coded]
                vectors, at = _vectors(payload, at, header.tokens, dim)
                exact = payload[at : at + dim * element] if is_first else b""
                at += len(exact)
                assert not is_first or vectors[0] == (0.0, [0] * dim)
                rows = [_turned_back(*vector) for vector in vectors]
                for token, row in enumerate(rows):
                    if token == 0 and is_first:
                        out += exact
                        continue
                    mean = means[token // MEAN_TOKENS] if means else [0.0] * dim
                    sums = (_single(one + other) for one, other in zip(row, mean, strict=True))
                    out += b"".join(_element(header.dtype, value) for value in sums)
    assert at == len(payload)
    return out


def _single(value: float) -> float:
    """The nearest float32."""
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    return float(single)


CHUNK = 128
#: Tokens that share a mean of K in codec 4.
MEAN_TOKENS = 16


def _rejoined(payload: bytes, header: RecordHeader) -> bytes:
    """The raw payload that comes of a payload of codec 1."""
    out, rest = b"", payload

    def take(count: int) -> bytes:
        nonlocal rest
        taken, rest = rest[:count], rest[count:]
        assert len(taken) == count
        return taken

    for _ in range(header.layers):
        for dim in (header.dim_k, header.dim_v)[: header.parts]:
            for _ in range(header.heads):
                count = header.tokens * dim
                (base,) = take(1)
                if base == 0xFF:
                    out += take(2 * count)
                    continue
                chunks = -(-count // CHUNK)
                codes = [take(CHUNK + CHUNK // 4 + CHUNK // 8) for _ in range(chunks)]
                elements = []
                for chunk, others in zip(codes, take(chunks), strict=True):
                    plain, pairs, singles = chunk[:128], chunk[128:160], chunk[160:]
                    exponents = [
                        base
                        + (pairs[i % 32] >> 2 * (i // 32) & 3)
                        + 4 * (singles[i % 16] >> i // 16 & 1)
                        for i in range(CHUNK)
                    ]
                    for _ in range(others):
                        place, exponent = take(2)
                        exponents[place] = exponent
                    elements += [
                        (byte & 0x80) << 8 | exponent << 7 | byte & 0x7F
                        for byte, exponent in zip(plain, exponents, strict=True)
                    ]
                out += struct.pack(f"<{count}H", *elements[:count])
    assert not rest
    return out


READERS = {0: lambda payload, _: payload, 1: _rejoined, 2: _dequantised, 4: _with_mean}


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@pytest.mark.parametrize("case", MANIFEST["records"], ids=lambda case: str(case["record"]))
def test_golden_record(case: dict[str, Any]) -> None:
    header, payload = verify_record((VECTORS / case["record"]).read_bytes())
    assert dataclasses.asdict(header) == _wanted(case["header"])
    raw = READERS[header.codec](payload, header)
    assert raw == _canonical((VECTORS / case["decoded"]).read_bytes(), case["geometry"])


@pytest.mark.parametrize("case", MANIFEST["refused"], ids=lambda case: str(case["file"]))
def test_refused_record(case: dict[str, Any]) -> None:
    with pytest.raises(RecordRefusedError) as refused:
        verify_record((VECTORS / case["file"]).read_bytes())
    assert refused.value.refusal == case["refusal"]


def test_every_flip_and_every_truncation_is_refused() -> None:
    record = (VECTORS / "smallest.record.bin").read_bytes()
    damaged = [record[:length] for length in range(len(record))]
    for bit in range(len(record) * 8):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << (bit % 8)
        damaged.append(bytes(flipped))
    for data in damaged:
        with pytest.raises(RecordRefusedError):
            verify_record(data)


def test_a_header_is_read_without_its_payload() -> None:
    record = (VECTORS / "smallest.record.bin").read_bytes()
    assert parse_record_header(record[:HEADER_BYTES]) == verify_record(record)[0]
