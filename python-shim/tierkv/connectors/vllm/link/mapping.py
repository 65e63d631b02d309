"""Maps the sidecar's arena after checking the memory's owner; the mapping has a descriptor of its own."""

import mmap
import os
import stat

from tierkv.connectors.vllm.link import systems


def map_arena(
    arena_id: int, fd: int | None, size: int, slot_bytes: int, slot_count: int
) -> mmap.mmap:
    """Map the memory behind `fd`, which the caller closes.

    Raises OSError if the memory is another user's, could shrink under a reader, or is smaller than promised.
    """
    if slot_bytes <= 0 or slot_count <= 0 or slot_bytes * slot_count > size:
        raise OSError(
            f"arena {arena_id}: {slot_count} slots of {slot_bytes} bytes do not fit {size} bytes"
        )
    if fd is None:
        raise OSError(f"arena {arena_id} came without its descriptor")
    _check(arena_id, fd, size)
    return mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def _check(arena_id: int, fd: int, size: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
        raise OSError(f"arena {arena_id} is no shared memory of user {os.geteuid()}")
    if found.st_size < size:
        raise OSError(f"arena {arena_id} has {found.st_size} bytes, the sidecar promised {size}")
    # Without a name it is a memfd; one with a name is the sidecar's own file ([sidecar] arena_dir), mode 0600.
    if found.st_nlink == 0 and not systems.cannot_shrink(fd):
        raise OSError(f"arena {arena_id} is not sealed: it could shrink while the engine reads it")
