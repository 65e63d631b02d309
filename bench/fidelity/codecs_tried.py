"""Owns the codecs that published.py judges, as functions of K and V of a whole prefix.

A codec takes K and V [head, token, dim] in float32, and what is known of the layer; it returns both as decoded.
Those of tierKV run in the core (`through_codec`); the others are computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from ladder import BLOCK, FLOAT32, Stored, build_codecs
from tried import fp8, rounded, scaled, turned

Pair = tuple[torch.Tensor, torch.Tensor]
Side = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """One layer: its number, tokens of a block, RoPE [token, dim], and the bias of K [head, dim] if it has any."""

    number: int
    block: int
    cos: torch.Tensor
    sin: torch.Tensor
    bias: torch.Tensor | None


class Through(Protocol):
    """A codec, there and back."""

    def __call__(self, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> Pair: ...

    def bits(self, dim: int, block: int) -> float:
        """Return the bits of one stored number, scales and means included, mean of K and V."""
        ...


class Each:
    """K through one function of [head, token, dim] and V through another, whatever the block."""

    def __init__(self, k: Side, v: Side, bits: Callable[[int], float]) -> None:
        self._k, self._v, self._bits = k, v, bits

    def __call__(self, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> Pair:
        del layer
        return self._k(k), self._v(v)

    def bits(self, dim: int, block: int) -> float:
        del block
        return self._bits(dim)


class Mean:
    """K without its mean over the block, then turned and in int8; V turned, in int8.

    The mean of each channel is kept in int8 with one scale per head. With `is_first_exact` the first block's first
    token is kept as it is, and its K does not count in the mean.
    """

    def __init__(self, *, is_first_exact: bool) -> None:
        self._is_first_exact = is_first_exact

    def __call__(self, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> Pair:
        blocks = k.unflatten(1, (-1, layer.block))
        counted = torch.ones(blocks.shape[1:3], dtype=k.dtype)
        if self._is_first_exact:
            counted[0, 0] = 0
        weights = (counted / counted.sum(1, keepdim=True))[None, ..., None]
        mean = INT8((blocks * weights).sum(2, keepdim=True))
        coded_k = (TURNED(blocks - mean) + mean).flatten(1, 2)
        coded_v = TURNED(v)
        if self._is_first_exact:
            coded_k[:, 0], coded_v[:, 0] = k[:, 0], v[:, 0]
        return coded_k, coded_v

    def bits(self, dim: int, block: int) -> float:
        mean = (8 + 16 / dim) / block
        return 8 + 16 / dim + mean / 2


class Core:
    """A codec of tierKV's core, by its id, block by block of 16 tokens."""

    def __init__(self, number: int) -> None:
        build_codecs()
        self._number = number
        self._stored: dict[torch.Size, Stored] = {}

    def __call__(self, k: torch.Tensor, v: torch.Tensor, layer: Layer) -> Pair:
        if layer.block != BLOCK:
            raise ValueError(
                f"--block {layer.block}: the core's codecs are judged on blocks of {BLOCK}"
            )
        stored = self._stored.setdefault(k.shape, Stored(self._number, FLOAT32))
        coded_k, coded_v = stored(k[None], v[None])
        return coded_k[0], coded_v[0]

    def bits(self, dim: int, block: int) -> float:
        del dim, block
        stored = next(iter(self._stored.values()))
        return 8 * stored.payload_bytes / stored.elements


def find_codec(name: str) -> Through:
    """Return a codec by its name; `core-ID` is one of the core, and `NAME=core-ID` the same under its name."""
    kind, _, number = name.rpartition("=")[2].partition("-")
    if kind == "core" and number.isdecimal():
        return Core(int(number))
    if name not in CODECS:
        raise SystemExit(f"--codec {name}: unknown; known: core-ID, {', '.join(CODECS)}")
    return CODECS[name]


def exact(x: torch.Tensor) -> torch.Tensor:
    return x


INT8 = scaled(8)
TURNED = turned(INT8)
CODECS: dict[str, Through] = {
    "exact": Each(exact, exact, lambda _: 32),
    "bf16": Each(rounded, rounded, lambda _: 16),
    "fp8": Each(fp8, fp8, lambda _: 8),
    "int8": Each(INT8, INT8, lambda dim: 8 + 16 / dim),
    "int8-had": Each(TURNED, INT8, lambda dim: 8 + 16 / dim),
    "mean-had": Mean(is_first_exact=False),
    "first-mean-had": Mean(is_first_exact=True),
}
