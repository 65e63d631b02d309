"""Owns one KV-cache group's share of a plan: what was asked for, what is held and what is placed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierkv.connectors.vllm.frames import is_set
from tierkv.connectors.vllm.specs import Group


@dataclass
class PlanGroup:
    """One group's share of a plan. Indices count its blocks from the prompt's start.

    `first`: the first block asked for; `count`: blocks looked up in all (0..count); `placed`: slots, `shards` per
    block, of blocks `begin`, `begin + 1`, ... without a hole.
    """

    group: Group
    first: int
    count: int
    begin: int = -1
    held: bytes | None = None
    placed: list[int] = field(default_factory=list)
    local: list[tuple[int, int, int]] = field(default_factory=list)

    def holds(self, index: int) -> bool:
        """Tell whether the sidecar or the vaults were reported to hold block `index` on all shards."""
        return self.held is not None and index < self.count and is_set(self.held, index)

    def missing(self, first: int, end: int) -> Sequence[int]:
        """Give those of the blocks `first` to `end` of which `holds` is false: none in no time, where all are held."""
        looked_up = min(end, self.count)
        if self.held is None or looked_up <= first:
            return range(first, end)
        held = int.from_bytes(self.held, "little") >> first
        if ~held & ((1 << (looked_up - first)) - 1) == 0:
            return range(looked_up, end)
        return [index for index in range(first, end) if not self.holds(index)]
