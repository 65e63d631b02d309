"""Maps the sidecar's arena into the worker and shows its slots as tensors."""

import ctypes

import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.mapping import map_arena

_MADV_POPULATE_WRITE = 23  # linux/mman.h, since 5.14


class Arena:
    """One mapped arena. The mapping outlives the sidecar, so a load that was admitted can always be finished.

    Raises OSError if the memory is another user's, could shrink under a reader, or is smaller than promised.
    """

    def __init__(
        self, arena_id: int, fd: int | None, size: int, slot_bytes: int, slot_count: int
    ) -> None:
        """`fd`: the frame's descriptor; the caller closes it, because the mapping has its own."""
        self.arena_id = arena_id
        self.slot_bytes = slot_bytes
        self.slot_count = slot_count
        self._map = map_arena(arena_id, fd, size, slot_bytes, slot_count)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def slot(self, number: int) -> torch.Tensor:
        """Give one slot as uint8 of length `slot_bytes`; no copy."""
        if not 0 <= number < self.slot_count:
            raise ValueError(f"slot {number} is not one of the arena's {self.slot_count}")
        return self.bytes.narrow(0, number * self.slot_bytes, self.slot_bytes)

    def run(self, first: int, count: int) -> torch.Tensor:
        """Give `count` slots in a row as uint8 (count, slot_bytes); no copy."""
        if not 0 <= first <= first + count <= self.slot_count:
            raise ValueError(f"slots {first} to {first + count} are not the arena's")
        whole = self.bytes.narrow(0, first * self.slot_bytes, count * self.slot_bytes)
        return whole.view(count, self.slot_bytes)

    @property
    def piece_slots(self) -> int:
        """Give how many slots are pinned at a time."""
        return max(1, limits.PIN_BYTES // self.slot_bytes)

    def pieces(self) -> list[torch.Tensor]:
        """Give the parts that are pinned one by one; no slot lies in two of them."""
        return list(self.bytes.split(self.piece_slots * self.slot_bytes))

    def populate(self) -> None:
        """Fault the mapping in page by page, so that no copy in a step pays for it. Takes seconds."""
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
