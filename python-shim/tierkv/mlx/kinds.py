"""Knows the kinds of mlx-lm's caches: the bytes of each that belong to a chunk, and its reconstruction."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import attention_layout, opaque_layout

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: Names in frames; caches of other dtypes are kept byte for byte.
_DTYPES: Final = {mx.bfloat16: "bf16", mx.float16: "f16", mx.float32: "f32"}
#: numpy's type for an element of this size, because numpy has no bfloat16 and only bytes matter.
_WORDS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_MLX_WORDS: Final = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
_TOKENS: Final = limits.MLX_CHUNK_TOKENS


class RefusedKindError(Exception):
    """A cache of an unsupported kind; the text names it."""


class ChangedShapeError(Exception):
    """A cache differs from those the engine was registered with."""


@dataclass(frozen=True)
class Part:
    """One array of a cache. `rows`: heads times tokens rows of `width` elements; else the whole array."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] * int(self.dtype.size)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.size)


@dataclass(frozen=True)
class Group:
    """Caches of one kind and shape: `leaves` are their places among all, `parts` the arrays of each.

    `rows`: cut at every chunk, else whole at a boundary. `window`: slots of a rotating cache; 0 for others.
    """

    index: int
    kind: str
    leaves: tuple[int, ...]
    parts: tuple[Part | None, ...]
    rows: bool
    window: int = 0
    keep: int = 0

    @property
    def heads(self) -> int:
        """Give the heads of a row of tokens."""
        first = self.parts[0]
        return first.shape[1] if first is not None and len(first.shape) > 1 else 1

    @property
    def width(self) -> int:
        """Give the bytes of a token in one head, all parts together."""
        return sum(part.row_bytes for part in self.parts if part is not None)

    @property
    def leaf_bytes(self) -> int:
        """Give the bytes of one cache in a slot."""
        if self.rows:
            return self.heads * _TOKENS * self.width
        return sum(part.bytes for part in self.parts if part is not None)

    @property
    def block_bytes(self) -> int:
        """Give the bytes of all caches in a slot."""
        return len(self.leaves) * self.leaf_bytes

    @property
    def record_class(self) -> str:
        """Give the class of the group's records."""
        return "ssm" if self.kind == "ArraysCache" else "kv"

    def describe(self) -> dict[str, Any]:
        """Give the ingredients that make two engines' blocks of this group comparable."""
        parts = [None if p is None else [list(p.shape), str(p.dtype)] for p in self.parts]
        named = {"kind": self.kind, "leaves": list(self.leaves), "parts": parts, "rows": self.rows}
        return {**named, "window": self.window, "keep": self.keep}

    def registration(self) -> Frame:
        """Give the group as a `register` frame has it (docs/protocol.md, section 4)."""
        common: Frame = {
            "group": self.index,
            "class": self.record_class,
            "tokens": _TOKENS,
            "tail": 0 if self.rows else 1,
        }
        layers, keys, values = len(self.leaves), *(*self.parts, None)[:2]
        if self.kind != "KVCache" or keys is None or values is None or not self._is_canonical():
            return {**common, **opaque_layout(layers, self.leaf_bytes)}
        shape = attention_layout(
            _DTYPES[keys.dtype],
            keys.dtype.size,
            layers=layers,
            heads=self.heads,
            tokens=_TOKENS,
            dim_k=keys.shape[-1],
            dim_v=values.shape[-1],
        )
        return {**common, **shape}

    def _is_canonical(self) -> bool:
        keys, values = self.parts
        if keys is None or values is None or keys.dtype != values.dtype:
            return False
        return keys.dtype in _DTYPES and keys.shape[-1] > 0 and values.shape[-1] > 0


def leaves_of(caches: Sequence[Any]) -> list[Any]:
    """Give all caches, with nested lists flattened in place."""
    return list(_leaves(caches))


def _leaves(caches: Sequence[Any]) -> Iterator[Any]:
    for cache in caches:
        if type(cache) is CacheList:
            yield from _leaves(cache.caches)
        else:
            yield cache


def groups_of(caches: Sequence[Any]) -> list[Group]:
    """Group caches that have seen a token. Raises RefusedKindError naming an unsupported kind."""
    found: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves_of(caches)):
        found.setdefault(_shape_of(leaf), []).append(place)
    return [
        Group(index, kind, tuple(places), parts, rows, window, keep)
        for index, ((kind, parts, rows, window, keep), places) in enumerate(found.items())
    ]


def _shape_of(leaf: Any) -> tuple[str, tuple[Part | None, ...], bool, int, int]:
    kind = type(leaf)
    if kind is KVCache or kind is QuantizedKVCache:
        parts = [Part((*a.shape[:2], 1, a.shape[-1]), a.dtype) for a in _rows(leaf)]
        # Included, because sizes do not tell how values were packed.
        packing = (leaf.group_size, leaf.bits) if kind is QuantizedKVCache else (0, 0)
        return kind.__name__, tuple(parts), True, *packing
    if kind is RotatingKVCache:
        size = leaf.max_size
        parts = [Part((*a.shape[:2], size, a.shape[-1]), a.dtype) for a in (leaf.keys, leaf.values)]
        return kind.__name__, tuple(parts), False, size, leaf.keep
    if kind is ArraysCache:
        whole = [None if a is None else Part(tuple(a.shape), a.dtype) for a in leaf.cache]
        return kind.__name__, tuple(whole), False, 0, 0
    raise RefusedKindError(
        f"{kind.__module__}.{kind.__qualname__} is no kind of cache that tierKV knows"
    )


def _rows(leaf: Any) -> list[mx.array]:
    """Give the arrays of a cache that is cut by tokens."""
    if type(leaf) is QuantizedKVCache:
        return [*leaf.keys, *leaf.values]
    return [leaf.keys, leaf.values]


def tokens_in(caches: Sequence[Any]) -> int | None:
    """Give the tokens the caches have seen; None if none tells."""
    seen = [c.offset for c in leaves_of(caches) if type(c) is not ArraysCache]
    return min(seen, default=None)


def fill(group: Group, leaves: Sequence[Any], end: int, slot: Bytes) -> None:
    """Write the block of `group` that ends after `end` tokens into a slot.

    Raises ChangedShapeError where a cache is absent, or not as registered.
    """
    for at, place in enumerate(group.leaves):
        room = slot[at * group.leaf_bytes : (at + 1) * group.leaf_bytes]
        if group.rows:
            _fill_rows(group, leaves[place], end, room)
        else:
            _fill_whole(group, leaves[place], end, room)


def _fill_rows(group: Group, leaf: Any, end: int, room: Bytes) -> None:
    arrays = _checked(group, leaf, _rows(leaf) if leaf.keys is not None else [])
    if leaf.offset < end:
        raise ChangedShapeError(f"{group.kind} has {leaf.offset} tokens of {end}")
    rows = room.reshape(group.heads, _TOKENS, group.width)
    start = 0
    for array, part in zip(arrays, group.parts, strict=True):
        assert part is not None
        cut = _raw(array[0, :, end - _TOKENS : end, :]).reshape(group.heads, _TOKENS, -1)
        rows[:, :, start : start + part.row_bytes] = cut
        start += part.row_bytes


def _fill_whole(group: Group, leaf: Any, end: int, room: Bytes) -> None:
    if group.kind == "RotatingKVCache":
        known = (leaf.max_size, leaf.keep) == (group.window, group.keep)
        if leaf.keys is None or leaf.offset != end or not known:
            raise ChangedShapeError(f"{group.kind} is not at {end} tokens")
        arrays: list[Any] = [_in_order(leaf, a) for a in (leaf.keys, leaf.values)]
    else:
        if leaf.lengths is not None or leaf.left_padding is not None:
            raise ChangedShapeError(f"{group.kind} is of several prompts")
        arrays = list(leaf.cache)
    start = 0
    for array, part in zip(_checked(group, leaf, arrays), group.parts, strict=True):
        if part is None:
            continue
        data = _raw(array)
        if group.window:
            rows = room[start : start + part.bytes].reshape(group.heads, group.window, -1)
            count = array.shape[2]
            rows[:, :count] = data.reshape(group.heads, count, -1)
            rows[:, count:] = 0
        else:
            room[start : start + part.bytes] = data
        start += part.bytes


def _in_order(leaf: Any, array: mx.array) -> mx.array:
    """Give a rotating cache's valid entries, oldest first."""
    if leaf._idx < min(leaf.offset, array.shape[2]):  # noqa: SLF001 - mlx-lm's own state has it
        turned = [array[..., : leaf.keep, :], array[..., leaf._idx :, :]]  # noqa: SLF001
        array = mx.concatenate([*turned, array[..., leaf.keep : leaf._idx, :]], axis=2)  # noqa: SLF001
    else:
        array = array[..., : leaf._idx, :]  # noqa: SLF001
    beyond = array.shape[2] - leaf.max_size
    if beyond <= 0:
        return array
    kept = array[..., : leaf.keep, :]
    return mx.concatenate([kept, array[..., leaf.keep + beyond :, :]], axis=2)


def _checked(group: Group, leaf: Any, arrays: Sequence[Any]) -> list[Any]:
    """Give the arrays if they match the group's registration, except for the number of tokens."""
    same = type(leaf).__name__ == group.kind and len(arrays) == len(group.parts)
    for array, part in zip(arrays, group.parts, strict=False):
        if (array is None) != (part is None):
            same = False
        elif array is not None and part is not None:
            shape, wanted = list(array.shape), list(part.shape)
            if group.rows or group.window:
                shape, wanted = [*shape[:2], shape[-1]], [*wanted[:2], wanted[-1]]
            same = same and shape == wanted and array.dtype == part.dtype
    if group.rows and group.kind == "QuantizedKVCache":
        same = same and (leaf.group_size, leaf.bits) == (group.window, group.keep)
    if not same or (group.rows and arrays[0].shape[0] != 1):
        raise ChangedShapeError(f"{group.kind} is not as it was registered")
    return list(arrays)


def _raw(array: mx.array) -> Bytes:
    """Give an array's bytes, in order."""
    words = mx.contiguous(array).view(_MLX_WORDS[array.dtype.size])
    return np.array(words, copy=False).reshape(-1).view(np.uint8)


def restore(group: Group, leaves: Sequence[Any], end: int, slots: Sequence[Bytes]) -> None:
    """Fill a group's fresh caches to their state after `end` tokens, from its slots in prompt order."""
    for at, place in enumerate(group.leaves):
        rooms = [slot[at * group.leaf_bytes : (at + 1) * group.leaf_bytes] for slot in slots]
        if group.rows:
            _restore_rows(group, leaves[place], end, rooms)
        else:
            _restore_whole(group, leaves[place], end, rooms[-1])


def _restore_rows(group: Group, leaf: Any, end: int, rooms: Sequence[Bytes]) -> None:
    arrays = []
    start = 0
    for part in group.parts:
        assert part is not None
        whole: Bytes = np.empty((group.heads, end, part.row_bytes), np.uint8)
        for number, room in enumerate(rooms):
            rows = room.reshape(group.heads, _TOKENS, group.width)
            into = whole[:, number * _TOKENS : (number + 1) * _TOKENS]
            into[:] = rows[:, :, start : start + part.row_bytes]
        arrays.append(_array(whole.reshape(-1), (*part.shape[:2], end, part.shape[-1]), part.dtype))
        start += part.row_bytes
    if group.kind == "QuantizedKVCache":
        half = len(arrays) // 2
        leaf.keys, leaf.values = tuple(arrays[:half]), tuple(arrays[half:])
    else:
        leaf.keys, leaf.values = arrays
    leaf.offset = end


def _restore_whole(group: Group, leaf: Any, end: int, room: Bytes) -> None:
    arrays: list[mx.array | None] = []
    start = 0
    for part in group.parts:
        if part is None:
            arrays.append(None)
            continue
        data = room[start : start + part.bytes]
        start += part.bytes
        array = _array(data, part.shape, part.dtype)
        arrays.append(array[..., : min(end, group.window), :] if group.window else array)
    if group.kind == "ArraysCache":
        leaf.cache = arrays
        return
    leaf.keys, leaf.values = arrays
    leaf.offset = end
    leaf._idx = min(end, group.window)  # noqa: SLF001 - part of its state, as mlx-lm saves it


def _array(data: Bytes, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Copy a slot's bytes into a new array."""
    words = np.ascontiguousarray(data).view(_WORDS[dtype.size]).reshape(shape)
    return mx.array(words).view(dtype)
