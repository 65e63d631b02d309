"""Frames of the local socket: uint32 length, then one msgpack map (docs/protocol.md, section 4)."""

import struct
from typing import Any, Final

import msgspec

from tierkv.connectors.vllm import limits

Frame = dict[str, Any]
_LENGTH: Final = struct.Struct("<I")


class FrameError(Exception):
    """The peer sent bytes that are no valid frame; the connection cannot go on."""


class RefusedError(FrameError):
    """The peer refused the connection; the text has its reason."""


def encode(frame: Frame) -> bytes:
    """Give the bytes of one frame; raises FrameError above `FRAME_BYTES_MAX`."""
    body = msgspec.msgpack.encode(frame)
    if len(body) > limits.FRAME_BYTES_MAX:
        raise FrameError(
            f"frame {frame.get('t')!r} has {len(body)} bytes; the limit is {limits.FRAME_BYTES_MAX}"
        )
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Splits arriving bytes into whole frames. Holds at most one frame's bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > limits.FRAME_BYTES_MAX:
                raise FrameError(
                    f"the sidecar announced a frame of {length} bytes; the limit is {limits.FRAME_BYTES_MAX}"
                )
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(self._decode(bytes(self._buffer[start + _LENGTH.size : end])))
            start = end
        del self._buffer[:start]
        return frames

    @staticmethod
    def _decode(body: bytes) -> Frame:
        try:
            frame = msgspec.msgpack.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"the sidecar sent a frame that is not msgpack: {error}") from error
        if not isinstance(frame, dict) or not isinstance(frame.get("t"), str):
            raise FrameError("the sidecar sent a frame without a name (field `t`)")
        return frame
