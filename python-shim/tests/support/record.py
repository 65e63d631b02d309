"""A small reader of records in pure Python, for tests alone.

The bytes and the order of the refusals are those of docs/protocol.md, section 1.
"""

import struct
from dataclasses import dataclass

HEADER_BYTES = 192
_CHECKED_BYTES = 188
# Magic to reserved, then the two checksums.
_LAYOUT = struct.Struct("<4sHHBBBBHHHBBIIIIIQQQ32s32s32s24sII")

_RAW, _LOSSLESS, _INT8, _INT8_MEAN_HAD = 0, 1, 2, 4
#: Tokens that share a mean of K in codec 4.
_MEAN_TOKENS = 16
_BF16 = 1
#: Their records may stand in any namespace, those of other codecs in their own.
_EXACT = (_RAW, _LOSSLESS)
_CLASSES = {1, 2}
_KV = 1
_CANONICAL, _OPAQUE = 0, 1
_ELEMENT_BYTES = {0: 1, 1: 2, 2: 2, 3: 4}
_POLYNOMIAL = 0x82F63B78


class RecordRefusedError(ValueError):
    """Bytes that are not a sound record; `refusal` is the one word that all readers use for why."""

    def __init__(self, refusal: str) -> None:
        super().__init__(f"not a sound record: {refusal}")
        self.refusal = refusal


@dataclass(frozen=True)
class RecordHeader:
    """The fields of a header, in the order of its bytes. Counts are elements, lengths are bytes."""

    codec: int
    record_class: int
    fidelity: int
    layout: int
    group: int
    shard: int
    shard_count: int
    dtype: int
    parts: int
    tokens: int
    layers: int
    heads: int
    dim_k: int
    dim_v: int
    end_tokens: int
    payload_bytes: int
    source_bytes: int
    namespace: bytes
    block_hash: bytes
    parent_hash: bytes


def _table() -> list[int]:
    table = []
    for value in range(256):
        rest = value
        for _ in range(8):
            rest = (rest >> 1) ^ (_POLYNOMIAL if rest & 1 else 0)
        table.append(rest)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The CRC32C (Castagnoli) of `data`; about 10 MB/s."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def parse_record_header(data: bytes) -> RecordHeader:
    """The header that `data` starts with, checked but for the payload.

    Raises RecordRefusedError with the first refusal in the protocol's order.
    """
    return _parse(data)[0]


def verify_record(data: bytes) -> tuple[RecordHeader, bytes]:
    """The header and the payload of a whole record.

    Raises RecordRefusedError with the first refusal in the protocol's order.
    """
    header, payload_checksum = _parse(data)
    payload = data[HEADER_BYTES:]
    if len(payload) != header.payload_bytes:
        raise RecordRefusedError("length")
    if crc32c(payload) != payload_checksum:
        raise RecordRefusedError("payload_checksum")
    return header, payload


def _parse(data: bytes) -> tuple[RecordHeader, int]:
    if len(data) < HEADER_BYTES:
        raise RecordRefusedError("short")
    head = data[:HEADER_BYTES]
    magic, version, header_bytes, *fields, reserved, payload_checksum, checksum = _LAYOUT.unpack(
        head
    )
    header = RecordHeader(*fields)
    checks = (
        ("magic", magic == b"TKVR"),
        ("version", version == 1),
        ("header_bytes", header_bytes == HEADER_BYTES),
        ("header_checksum", crc32c(head[:_CHECKED_BYTES]) == checksum),
        ("codec", header.codec in (_RAW, _LOSSLESS, _INT8, _INT8_MEAN_HAD)),
        ("class", header.record_class in _CLASSES),
        ("layout", header.layout in (_CANONICAL, _OPAQUE)),
        ("dtype", header.dtype in _ELEMENT_BYTES),
        ("fidelity", header.codec in _EXACT or header.fidelity == header.codec),
        ("geometry", header.dtype in _ELEMENT_BYTES and _is_possible(header)),
        ("reserved", not any(reserved)),
    )
    for refusal, holds in checks:
        if not holds:
            raise RecordRefusedError(refusal)
    return header, payload_checksum


def _is_possible(header: RecordHeader) -> bool:
    if header.shard >= header.shard_count or header.tokens < 1 or header.layers < 1:
        return False
    if header.codec == _RAW and header.payload_bytes != header.source_bytes:
        return False
    dims = (header.dim_k > 0, header.dim_v > 0)
    if header.layout == _OPAQUE:
        plain = header.parts == 0 and header.heads == 0 and dims == (False, False)
        plain = plain and header.codec == _RAW
        return plain and header.source_bytes >= 1 and header.source_bytes % header.layers == 0
    if (
        header.dtype == 0
        or header.heads < 1
        or dims != {1: (True, False), 2: (True, True)}.get(header.parts)
    ):
        return False
    vectors = header.layers * header.heads * header.tokens
    elements = vectors * (header.dim_k + header.dim_v)
    if elements * _ELEMENT_BYTES[header.dtype] != header.source_bytes:
        return False
    if header.codec == _RAW:
        return True
    if header.record_class != _KV:
        return False
    if header.codec == _LOSSLESS:
        return header.dtype == _BF16 and 1 <= header.payload_bytes < header.source_bytes
    # Codec 2: a scale of two bytes per vector, a code of one byte per element.
    coded = vectors * header.parts * 2 + elements
    if header.codec == _INT8:
        return header.payload_bytes == coded
    # Codec 4: so is each mean of K; the first token of a sequence is exact.
    means = -(-header.tokens // _MEAN_TOKENS) * (header.dim_k + 2)
    exact = (header.dim_k + header.dim_v) * _ELEMENT_BYTES[header.dtype]
    is_first = header.parent_hash == bytes(32)
    payload_bytes = coded + header.layers * header.heads * (means + (exact if is_first else 0))
    return header.payload_bytes == payload_bytes < header.source_bytes
