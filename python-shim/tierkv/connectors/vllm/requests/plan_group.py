"""Owns one KV-cache group's share of a plan: blocks requested, held and placed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierkv.connectors.vllm.link.messages import is_set
from tierkv.connectors.vllm.pages.specs import Group


class LoadMismatchError(Exception):
    """vLLM allocated other blocks than those fetched for the boundary."""


def needed_blocks(group: Group, start: int, end: int) -> range:
    """Give the blocks after `start` tokens that a boundary at `end` tokens needs."""
    last = end // group.block_tokens
    first = start // group.block_tokens
    return range(max(first, last - group.tail) if group.tail else first, last)


@dataclass
class PlanGroup:
    """One group's share of a plan. Indices count its blocks from the prompt's start.

    `first`: the first block requested; `count`: blocks looked up in all (0..count); `placed`: slots, `shards` per
    block, of blocks `begin`, `begin + 1`, ... without a hole.
    """

    group: Group
    first: int
    count: int
    shards: int
    begin: int = -1
    held: bytes | None = None
    placed: list[int] = field(default_factory=list)
    local: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Give the first block that is placed, or will be."""
        return max(self.first, self.begin)

    @property
    def end(self) -> int:
        """Give the block behind the last one that lies verified in the arena."""
        return self.start + len(self.placed) // self.shards

    def place(self, first: int, slots: list[int], local: int, *, is_plain: bool) -> bool:
        """Append blocks, `local` of which came from no vault; False when they do not follow those already placed."""
        begin = self.begin if self.placed else max(first, self.first)
        if is_plain:
            begin = self.first
        if first != begin + len(self.placed) // self.shards:
            return False
        self.begin = begin
        self.placed.extend(slots)
        self.local.append((first, len(slots) // self.shards, local))
        return True

    def slots_of(self, index: int, count: int = 1) -> list[int]:
        """Give the slots of `count` blocks from `index` on, `shards` of each; fewer where not all are placed."""
        at = (index - self.start) * self.shards
        return self.placed[at : at + count * self.shards] if at >= 0 else []

    def blocks(self, start: int, end: int, table: Sequence[int]) -> tuple[list[int], list[int]]:
        """Give block ids and slots for the tokens from `start` to `end`; `table`: the request's block ids.

        Raises LoadMismatchError.
        """
        group = self.group
        first, last = start // group.block_tokens, end // group.block_tokens
        block_ids, slots = list(table[first:last]), self.slots_of(first, last - first)
        is_whole = len(block_ids) == last - first and 0 not in block_ids
        if is_whole and len(slots) == len(block_ids) * self.shards:
            return block_ids, slots  # the usual case, at once for 65,536 blocks
        block_ids, slots = [], []
        needed = needed_blocks(group, start, end)
        # A window's rule, or an unknown kind's, may need fewer blocks than ours; a state or a full group needs each.
        may_skip = group.may_skip or (group.tail > 0 and not group.is_state)
        for index in range(first, last):
            block_id = table[index] if index < len(table) else 0
            if block_id == 0:  # vLLM's null block
                if index in needed and not may_skip:
                    raise LoadMismatchError(f"group {group.index} has no block {index}")
                continue
            found = self.slots_of(index)
            if not found:
                raise LoadMismatchError(
                    f"group {group.index} has block {index}, which is not placed"
                )
            block_ids.append(block_id)
            slots.extend(found)
        return block_ids, slots

    def holds(self, index: int) -> bool:
        """Tell whether the sidecar or the vaults were reported to hold block `index` on all shards."""
        return self.held is not None and index < self.count and is_set(self.held, index)

    def missing(self, first: int, end: int) -> Sequence[int]:
        """Give the blocks from `first` to `end` that are not held; quick where all are."""
        looked_up = min(end, self.count)
        if self.held is None or looked_up <= first:
            return range(first, end)
        held = int.from_bytes(self.held, "little") >> first
        if ~held & ((1 << (looked_up - first)) - 1) == 0:
            return range(looked_up, end)
        return [index for index in range(first, end) if not self.holds(index)]
