"""Owns the order of K and V within a page: where each element of a token lies, as factors of token and dimension."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: Size of a factor and its stride in elements; a list of factors goes from the outermost to the innermost.
Factor = tuple[int, int]


class UnknownOrderError(ValueError):
    """Elements lie in no order that factors describe, or in none that could be found; the text says why."""


@dataclass(frozen=True)
class PartOrder:
    """Where K or V of all heads lies in a page, in elements from the page's first.

    Element `d` of token `t` of head `h` lies at `offset + h * head_stride` plus the sum of digit times stride over
    `tokens`, for the digits of `t` in the mixed radix of its factors' sizes, and likewise over `dims` for `d`.
    """

    offset: int
    head_stride: int
    tokens: tuple[Factor, ...]
    dims: tuple[Factor, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Give the sizes of all factors, of tokens first."""
        return tuple(size for size, _ in (*self.tokens, *self.dims))

    def of_pages(self, layer: torch.Tensor, num_blocks: int) -> torch.Tensor:
        """Show a layer (kernel blocks, heads, ...) as (blocks, kernel blocks of each, heads, *tokens, *dims)."""
        kernel_blocks = layer.shape[0] // num_blocks
        strides = tuple(stride for _, stride in (*self.tokens, *self.dims))
        return layer.as_strided(
            (num_blocks, kernel_blocks, layer.shape[1], *self.sizes),
            (layer.stride(0) * kernel_blocks, layer.stride(0), self.head_stride, *strides),
            layer.storage_offset() + self.offset,
        )

    def of_vectors(self, vectors: torch.Tensor) -> torch.Tensor:
        """Show (..., tokens, dims) as (..., *tokens, *dims)."""
        by_dim = vectors.unflatten(-1, tuple(size for size, _ in self.dims))
        place = -1 - len(self.dims)
        by_token: torch.Tensor = by_dim.unflatten(place, tuple(size for size, _ in self.tokens))
        return by_token

    def __str__(self) -> str:
        return f"[{', '.join(name for _, name in sorted(self._named(), reverse=True))}]"

    def _named(self) -> list[tuple[int, str]]:
        """Give (stride, name) of each factor: tokens/16 is an outer one, 16 an inner one."""
        found = []
        for kind, factors in (("tokens", self.tokens), ("dim", self.dims)):
            for place, (size, stride) in enumerate(factors):
                inner = math.prod(other for other, _ in factors[1:])
                outer = kind if len(factors) == 1 else f"{kind}/{inner}"
                found.append((stride, outer if place == 0 else str(size)))
        return found


@dataclass(frozen=True)
class Order:
    """Where K and V lie in a page."""

    key: PartOrder
    value: PartOrder

    def joined(self) -> PartOrder | None:
        """Give the order of K and V as one vector, where V follows K in each token; else None."""
        key, value = self.key, self.value
        dim = math.prod(size for size, _ in key.dims)
        follows = value.offset == key.offset + dim and key.head_stride == value.head_stride
        is_dense = all(len(part.dims) == 1 and part.dims[0][1] == 1 for part in (key, value))
        if not (follows and is_dense and key.tokens == value.tokens):
            return None
        return PartOrder(key.offset, key.head_stride, key.tokens, ((dim + value.dims[0][0], 1),))

    def __str__(self) -> str:
        if self.joined() is not None:
            return "[tokens, K then V]" if len(self.key.tokens) == 1 else f"{self.key}, V beside K"
        return f"K {self.key}, V {self.value}"


def plain_order(layer: torch.Tensor, dim_k: int) -> Order:
    """Give the order that the shape (blocks, heads, tokens, K then V) of a layer says."""
    _, _, tokens, width = layer.shape
    _, head, token, element = layer.stride()
    parts = [
        PartOrder(start * element, head, ((tokens, token),), ((dim, element),))
        for start, dim in ((0, dim_k), (dim_k, width - dim_k))
    ]
    return Order(*parts)


def factors(places: Sequence[int]) -> tuple[Factor, ...]:
    """Give the factors by which index `i` lies at `places[i]`, where `places[0]` is 0.

    Raises UnknownOrderError where there are none.
    """
    found: list[Factor] = []
    left = list(places)
    while len(left) > 1:
        stride, size = left[1], 2
        while size < len(left) and left[size] == size * stride:
            size += 1
        if len(left) % size:
            break
        found.append((size, stride))
        left = left[::size]
    whole = [0]
    for size, stride in found:
        whole = [start + digit * stride for digit in range(size) for start in whole]
    if whole != list(places):
        raise UnknownOrderError("its tokens or elements lie in no regular order")
    return tuple(reversed(found)) or ((1, 1),)
