"""Maps the sidecar's arena into the worker and shows its slots as tensors."""

import ctypes
import fcntl
import mmap
import os
import stat
import threading

import torch

from tierkv.connectors.vllm import limits

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MADV_POPULATE_WRITE = 23  # linux/mman.h, since 5.14


class Arena:
    """One mapped arena. The mapping outlives the sidecar, so a load that was admitted can always be finished.

    Raises OSError when it is not this user's memory, could shrink under a reader, or has not the promised size.
    """

    def __init__(
        self, arena_id: int, fd: int | None, size: int, slot_bytes: int, slot_count: int
    ) -> None:
        """`fd`: as it came with the frame; the caller closes it, the mapping has its own."""
        self.arena_id = arena_id
        self.slot_bytes = slot_bytes
        self.slot_count = slot_count
        if slot_bytes <= 0 or slot_count <= 0 or slot_bytes * slot_count > size:
            raise OSError(
                f"arena {arena_id}: {slot_count} slots of {slot_bytes} bytes do not fit {size} bytes"
            )
        if fd is None:
            raise OSError(f"arena {arena_id} came without its descriptor")
        _check(arena_id, fd, size)
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def slot(self, number: int) -> torch.Tensor:
        """Give one slot as uint8 of length `slot_bytes`; no copy."""
        if not 0 <= number < self.slot_count:
            raise ValueError(f"slot {number} is not one of the arena's {self.slot_count}")
        return self.bytes.narrow(0, number * self.slot_bytes, self.slot_bytes)

    def populate_in_background(self) -> None:
        """Make the mapping present page by page on a helper thread, so that no copy on the step path pays for it."""
        threading.Thread(target=self._populate, name="tierkv-populate", daemon=True).start()

    def _populate(self) -> None:
        madvise = ctypes.CDLL(
            None, use_errno=True
        ).madvise  # ctypes drops the GIL, mmap.madvise does not
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        start = self.bytes.data_ptr()
        size = self.bytes.numel()
        for offset in range(0, size, limits.POPULATE_STEP_BYTES):
            length = min(limits.POPULATE_STEP_BYTES, size - offset)
            if madvise(start + offset, length, _MADV_POPULATE_WRITE) != 0:
                return  # an older kernel: the first copies pay the page faults instead


def _check(arena_id: int, fd: int, size: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
        raise OSError(f"arena {arena_id} is no shared memory of user {os.geteuid()}")
    if found.st_size < size:
        raise OSError(f"arena {arena_id} has {found.st_size} bytes, the sidecar promised {size}")
    # Without a name it is a memfd; one with a name is the sidecar's own file ([sidecar] arena_dir), mode 0600.
    if found.st_nlink == 0 and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise OSError(f"arena {arena_id} is not sealed: it could shrink while the engine reads it")


class ArenaShelf:
    """The arenas a worker has mapped: the present one, and old ones that admitted loads may still read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arenas: dict[int, Arena] = {}

    def add(self, arena: Arena) -> None:
        """Keep an arena; the oldest beyond `ARENAS_MAX` are unmapped when their last view is gone."""
        with self._lock:
            self._arenas[arena.arena_id] = arena
            while len(self._arenas) > limits.ARENAS_MAX:
                self._arenas.pop(next(iter(self._arenas)))

    def get(self, arena_id: int) -> Arena | None:
        """Give a mapped arena by the sidecar's number for it."""
        with self._lock:
            return self._arenas.get(arena_id)
