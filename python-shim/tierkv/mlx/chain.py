"""Owns how a prompt is cut into chunks and named: each hash takes in all tokens before it, and pictures shown there."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from tierkv.connectors.vllm import limits

_ROOT: Final = hashlib.sha256(b"tierkv mlx chain 1").digest()
_EXTRA: Final = struct.Struct("<qQ")

#: What stands at a place of the prompt besides its token: the place, and a digest of it.
Extra = tuple[int, str]


def chunk_hashes(tokens: Sequence[int], extras: Iterable[Extra] = ()) -> list[bytes]:
    """Give the SHA-256 of each whole chunk, chained; up to the first that has a negative token.

    mlx-lm's server puts one in the place of a picture, made from its address alone: that names no picture.
    """
    shown = sorted(extras)
    hashes: list[bytes] = []
    before = _ROOT
    for start in range(0, len(tokens) - limits.MLX_CHUNK_TOKENS + 1, limits.MLX_CHUNK_TOKENS):
        end = start + limits.MLX_CHUNK_TOKENS
        chunk = tokens[start:end]
        if min(chunk) < 0:
            break
        digest = hashlib.sha256(before)
        digest.update(struct.pack(f"<{len(chunk)}q", *chunk))
        for place, name in shown:
            if start <= place < end:
                digest.update(_EXTRA.pack(place, len(name.encode())))
                digest.update(name.encode())
        before = digest.digest()
        hashes.append(before)
    return hashes
