"""Owns the codecs that tierKV does not have, computed in float32 to estimate their cost.

TurboQuant's are those of vLLM 0.32 (`--kv-cache-dtype turboquant_...`), whose kernels need a GPU: K turned by a
Hadamard matrix, coded with the best levels for a normal distribution and rescaled to its norm; V in integers
between its least and its most.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

#: Best levels for a normal distribution in 3 and 4 bits (Max 1960), the positive half.
LEVELS = {
    3: (0.2451, 0.7560, 1.344, 2.152),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733),
}
GROUP = 32
#: The smallest scale: the smallest normal number of bfloat16.
TINY = 2.0**-126

Codec = Callable[[torch.Tensor], torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor]


class Tried:
    """Codecs for K and V; `bits`: bits per number by head dim, scales included."""

    def __init__(self, k: Codec, v: Codec, bits: Callable[[int], float]) -> None:
        self._k, self._v, self._bits = k, v, bits
        self.elements, self.payload_bytes = 0, 0.0

    def __call__(self, k: torch.Tensor, v: torch.Tensor) -> Pair:
        self.elements += k.numel() + v.numel()
        self.payload_bytes += (k.numel() + v.numel()) * self._bits(k.shape[-1]) / 8
        return self._k(k), self._v(v)

    def close(self) -> None:
        """Does nothing, because no process runs."""


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def scaled(bits: int, group: int | None = None) -> Codec:
    """Codes as integers with one bfloat16 scale per group; `group` None: per head vector."""
    top = (1 << (bits - 1)) - 1

    def code(x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(-1, (-1, group or x.shape[-1]))
        scale = rounded(parts.abs().amax(-1, keepdim=True) / top).clamp(min=TINY)
        return ((parts / scale).round().clamp(-top, top) * scale).flatten(-2)

    return code


def between(bits: int) -> Codec:
    """Codes as integers between the least and the most of a head vector, both in fp16."""
    top = (1 << bits) - 1

    def code(x: torch.Tensor) -> torch.Tensor:
        low = x.amin(-1, keepdim=True)
        step = ((x.amax(-1, keepdim=True) - low) / top).clamp(min=1e-8)
        codes = ((x - low) / step).round().clamp(0, top)
        return codes * step.half().float() + low.half().float()

    return code


def normal(bits: int, *, keeps_norm: bool = False) -> Codec:
    """Codes with levels for normally distributed values and one scale per vector, which may preserve its norm."""
    half = LEVELS[bits]
    levels = torch.tensor([*(-level for level in reversed(half)), *half])
    edges = (levels[1:] + levels[:-1]) / 2

    def code(x: torch.Tensor) -> torch.Tensor:
        scale = rounded(x.square().mean(-1, keepdim=True).sqrt()).clamp(min=TINY)
        found = levels.to(x.device)[torch.bucketize((x / scale).contiguous(), edges.to(x.device))]
        if keeps_norm:
            found = found / found.square().mean(-1, keepdim=True).sqrt()
        return found * scale

    return code


@functools.cache
def hadamard(dim: int) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(dim)


def turned(code: Codec) -> Codec:
    """Spreads each value over the whole vector, codes, and turns back."""

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        turn = hadamard(x.shape[-1]).to(x.device)
        return code(x @ turn) @ turn

    return there_and_back


def fp8(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e4m3fn).float()


def turboquant(k_bits: int, v_bits: int) -> Tried:
    k = fp8 if k_bits == 8 else turned(normal(k_bits, keeps_norm=True))
    k_scale_bits = 0 if k_bits == 8 else 16
    return Tried(k, between(v_bits), lambda dim: (k_bits + v_bits + (k_scale_bits + 32) / dim) / 2)


INT8, INT4 = scaled(8), scaled(4, GROUP)
TRIED: list[tuple[str, Tried]] = [
    ("k8v4", Tried(INT8, INT4, lambda dim: (8 + 16 / dim + 4 + 16 / GROUP) / 2)),
    ("int4", Tried(INT4, INT4, lambda _: 4 + 16 / GROUP)),
    ("int4-had", Tried(turned(normal(4)), turned(normal(4)), lambda dim: 4 + 16 / dim)),
    ("fp8", Tried(fp8, fp8, lambda _: 8)),
    ("TurboQuant k8v4", turboquant(8, 4)),
    ("TurboQuant 4bit", turboquant(4, 4)),
    ("TurboQuant k3v4", turboquant(3, 4)),
    ("TurboQuant 3bit", turboquant(3, 3)),
]
