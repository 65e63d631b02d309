"""Frames of the local socket: whatever the cuts, the same frames; whatever the bytes, only a FrameError."""

import struct

import msgspec
import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame, FrameDecoder, FrameError, encode

FRAMES: list[Frame] = [
    {"t": "ping", "n": 1},
    {"t": "save", "items": [[0, 1, 0, b"h" * 32, bytes(32), 4]]},
    {"t": "counts", "counters": {}},
    {"t": "held", "groups": [{"group": 0, "held": b"\x00" * 1000}], "req": "größer"},
]


def test_a_frame_is_a_little_endian_length_and_one_msgpack_map() -> None:
    data = encode({"t": "ping", "n": 7})
    assert struct.unpack("<I", data[:4]) == (len(data) - 4,)
    assert msgspec.msgpack.decode(data[4:]) == {"t": "ping", "n": 7}


def test_frames_survive_being_cut_anywhere() -> None:
    stream = b"".join(encode(frame) for frame in FRAMES)
    for cut in range(len(stream) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(stream[:cut]) + decoder.feed(stream[cut:]) == FRAMES


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    overhead = len(encode({"t": "x", "b": bytes(limits.FRAME_BYTES_MAX - 100)})) - 4
    room = limits.FRAME_BYTES_MAX - (overhead - (limits.FRAME_BYTES_MAX - 100))
    largest = encode({"t": "x", "b": bytes(room)})
    assert len(largest) == 4 + limits.FRAME_BYTES_MAX
    assert len(FrameDecoder().feed(largest)) == 1
    with pytest.raises(FrameError, match=f"'x' has {limits.FRAME_BYTES_MAX + 1} bytes"):
        encode({"t": "x", "b": bytes(room + 1)})


def test_f10_a_length_above_the_limit_is_refused_before_its_bytes_are_kept() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError, match=f"{limits.FRAME_BYTES_MAX + 1} bytes"):
        decoder.feed(struct.pack("<I", limits.FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x81\xa1t", "not msgpack"),
        (msgspec.msgpack.encode([1, 2]), "without a name"),
        (msgspec.msgpack.encode({"n": 1}), "without a name"),
        (msgspec.msgpack.encode({"t": 5}), "without a name"),
        (msgspec.msgpack.encode({"t": "x"}) + b"\x00", "not msgpack"),
    ],
)
def test_a_body_that_is_no_frame_is_refused(body: bytes, complaint: str) -> None:
    with pytest.raises(FrameError, match=complaint):
        FrameDecoder().feed(struct.pack("<I", len(body)) + body)
