"""Frames of the local socket: uint32 length, then one msgpack map (docs/protocol.md, section 4)."""

import os
import struct
from collections.abc import Iterable
from typing import Any, Final

import msgspec

import tierkv
from tierkv.connectors.vllm import limits

Frame = dict[str, Any]
_LENGTH: Final = struct.Struct("<I")


class FrameError(Exception):
    """The peer sent something that is no frame of ours; the connection cannot go on."""


class RefusedError(FrameError):
    """The peer read what we said and does not want us; it says why."""


def hello(
    engine: str, software: str, role: str, *, rank: int = 0, world: int = 1, shards: int = 1
) -> Frame:
    """Give the first frame of a connection. `shards`: of `world` ranks, those with pages of their own."""
    return {
        "t": "hello",
        "protocol": limits.LOCAL_PROTOCOL,
        "role": role,
        "engine": engine,
        "rank": rank,
        "world": world,
        "shards": shards,
        "pid": os.getpid(),
        "shim": tierkv.__version__,
        "vllm": software,
    }


def named_blocks(group: Any, hashes: Iterable[bytes], first: int) -> Frame:
    """Name blocks of a KV-cache group by their hashes, in the order of the prompt; meant are those from `first` on."""
    joined = b"".join(hashes)
    return {"group": group.index, "class": group.record_class, "hashes": joined, "from": first}


def opaque_layout(layers: int, layer_bytes: int) -> Frame:
    """Describe how a slot holds blocks whose bytes mean nothing to the sidecar, for `register`."""
    names = ("heads", "dim_k", "dim_v", "key_offset", "value_offset", "head_stride", "token_stride")
    shape = {"layers": layers, "layer_bytes": layer_bytes}
    return {"layout": "opaque", "dtype": "u8", **shape, **dict.fromkeys(names, 0)}


def attention_layout(
    dtype: str, item_bytes: int, *, layers: int, heads: int, tokens: int, dim_k: int, dim_v: int
) -> Frame:
    """Describe how a slot holds K and V, for `register`: (layer, head, token, K|V), densely."""
    token_stride = (dim_k + dim_v) * item_bytes
    return {
        "layout": "attention",
        "dtype": dtype,
        "layers": layers,
        "heads": heads,
        "dim_k": dim_k,
        "dim_v": dim_v,
        "layer_bytes": heads * tokens * token_stride,
        "key_offset": 0,
        "value_offset": dim_k * item_bytes,
        "head_stride": tokens * token_stride,
        "token_stride": token_stride,
    }


def is_set(bits: bytes, index: int) -> bool:
    """Tell whether a bit of a bitmap is set; one that is too short says no."""
    return index // 8 < len(bits) and bool(bits[index // 8] >> (index % 8) & 1)


def encode(frame: Frame) -> bytes:
    """Give the bytes of one frame; raises FrameError above `FRAME_BYTES_MAX`."""
    body = msgspec.msgpack.encode(frame)
    if len(body) > limits.FRAME_BYTES_MAX:
        raise FrameError(
            f"frame {frame.get('t')!r} has {len(body)} bytes; the limit is {limits.FRAME_BYTES_MAX}"
        )
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Takes bytes as they arrive, gives whole frames back. Holds at most one frame's bytes."""

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
