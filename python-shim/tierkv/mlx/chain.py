"""Owns the cut and names of a prompt's chunks: each hash covers all tokens up to its end, and pictures among them."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from tierkv.connectors.vllm import limits

_ROOT: Final = hashlib.sha256(b"tierkv mlx chain 1").digest()
_EXTRA: Final = struct.Struct("<qQ")

#: A place of the prompt with more than its token, such as a picture: (place, digest).
Extra = tuple[int, str]


def chunk_hashes(tokens: Sequence[int], extras: Iterable[Extra] = ()) -> list[bytes]:
    """Give the SHA-256 of each whole chunk, chained; up to the first that has a negative token.

    mlx-lm's server puts such a token for a picture, made only from its address, which does not name the picture.
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
