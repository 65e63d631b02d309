"""Owns the addresses of arrays' bytes, to notice writes, because mlx then puts the result elsewhere."""

import ctypes
from collections.abc import Sequence
from typing import Final

import mlx.core as mx

_pointer_of: Final = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Buffers:
    """Holds the buffers of arrays, because mlx neither writes a held buffer in place nor reuses its address."""

    def __init__(self, arrays: Sequence[mx.array]) -> None:
        self._arrays = [array for array in arrays if array.size]
        # Other arrays over the same bytes, unchanged by assignments to the first.
        self._held = [array[...] for array in self._arrays]
        mx.eval(self._held)
        self._seen = [_address(array) for array in self._arrays]

    def are_same(self) -> bool:
        """Tell whether no array has been written since; evaluates a written one."""
        return all(map(_is_at, self._arrays, self._seen))

    def let_go(self) -> None:
        """Release all buffers."""
        self._arrays, self._held, self._seen = [], [], []


def _is_at(array: mx.array, address: int) -> bool:
    return _address(array) == address


def _address(array: mx.array) -> int:
    # A DLTensor begins with the address of its data (dlpack.h), and goes with its capsule.
    capsule = array.__dlpack__()
    return ctypes.c_void_p.from_address(_pointer_of(capsule, b"dltensor")).value or 0
