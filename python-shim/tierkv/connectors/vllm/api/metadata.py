"""Owns the data that vLLM carries between the shim's two halves: work for one step, and its receipts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tierkv.connectors.vllm.api.compat import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from tierkv.connectors.vllm.api.resolved import Resolved

K = TypeVar("K")
V = TypeVar("V", int, float)


class SaveItem(NamedTuple):
    """One block to copy into the arena after this step's forward. Hashes are 32 bytes; `tenant` is 0 without a salt.

    `anchor` is the hash of the first block of its run: it determines which of several vaults holds the block.
    """

    group: int
    block_id: int
    block_hash: bytes
    parent_hash: bytes
    end_tokens: int
    tenant: int = 0
    anchor: bytes = b""

    def at(self, block_id: int) -> "SaveItem":
        return self._replace(block_id=block_id)


class LoadPart(NamedTuple):
    """Part of one admission: blocks to fill from arena slots.

    `slots` holds the slot numbers of every shard of each block; ranks that hold the same pages read the same slot. With
    `last` set the request is reported as received, once for this admission. Each rank acknowledges a part with a
    `number`. With `is_cut` the blocks have no slots, because they will not come; the ones of earlier parts count.
    """

    req_id: str
    arena: int
    group: int
    block_ids: list[int]
    slots: list[int]
    last: bool
    number: int = 0
    is_cut: bool = False


class CheckItem(NamedTuple):
    """A block that the step computes, to compare with its stored copy; `slots`: of all its shards."""

    number: int
    arena: int
    group: int
    block_id: int
    slots: list[int]


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Work for one engine step. `ticket` numbers the step's saves; the worker hands it back when they are copied.

    `has_forward` is False on steps without tokens: they copy what earlier steps put off. `tokens` and `attended` say
    how much prompt the step computes, for the worker to measure: tokens, and pairs of a token and one before; else 0.
    `step` numbers it, `heard` is the step of the last reported change of weights, `question` the open one of
    `generation.py` (0: none); saves belong to `namespace` (32 bytes). `arenas`: the arenas that later steps may
    load from; empty: unchanged. `is_off`: the scheduler side is off.
    """

    has_forward: bool = False
    step: int = 0
    heard: int = 0
    tokens: int = 0
    attended: int = 0
    ticket: int = 0
    namespace: bytes = b""
    saves: Sequence[SaveItem] = ()
    loads: Sequence[LoadPart] = ()
    checks: Sequence[CheckItem] = ()
    question: int = 0
    arenas: Sequence[int] = ()
    is_off: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only leading fields where the others are defaults: most steps carry just their number."""
        values = tuple(vars(self).values())
        return StepMetadata, values if any(values[_COMMON_FIELDS:]) else values[:_COMMON_FIELDS]


#: Leading fields of `StepMetadata` that are pickled alone when all others are defaults.
_COMMON_FIELDS = 5


@dataclass(frozen=True)
class Introduction(KVConnectorHandshakeMetadata):
    """The configuration that rank `rank` runs with; handed over once, before the first request."""

    rank: int
    resolved: Resolved


class Memory(NamedTuple):
    """A rank's answer to a question: what its models hold.

    `digest`: empty where it does not cover all weights. `is_loaded`: they hold what they held when they were loaded.
    """

    question: int
    digest: str = ""
    is_loaded: bool = False


@dataclass
class StepReceipts(KVConnectorWorkerMetadata):
    """Tickets whose source blocks were copied or refused, with the number of ranks that report so.

    `refused`: by ticket, its last items that some rank had no slot for. `slots`: free slots of the rank with the
    fewest; None if unchanged. `changed_at`: the step that first saw changed weights, 0 without news.
    `memory`: by rank, its answer to a question of `generation.py`.
    `resolved`: by rank, its configuration, once, where vLLM has no handshake for tierKV (MultiConnector).
    `checks`: by number of a check, how far the worst rank's halves agree, in dB. `loads`: microseconds that the copies
    of a part of an admission took on the slowest rank, by request. `failed`: requests whose load failed on a rank.
    `copied`: ranks that are done with a part of a load, by its number. `is_off`: a rank is off.
    """

    tickets: Counter[int] = field(default_factory=Counter)
    refused: dict[int, int] = field(default_factory=dict)
    slots: int | None = None
    changed_at: int = 0
    memory: dict[int, Memory] = field(default_factory=dict)
    resolved: dict[int, Resolved] = field(default_factory=dict)
    checks: dict[int, float] = field(default_factory=dict)
    loads: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    copied: Counter[int] = field(default_factory=Counter)
    is_off: bool = False

    def add_load(self, req_id: str, seconds: float) -> None:
        self.loads[req_id] = self.loads.get(req_id, 0) + max(1, int(seconds * 1e6))

    @property
    def is_empty(self) -> bool:
        return (
            not (self.tickets or self.memory or self.changed_at or self.resolved)
            and not (self.checks or self.loads or self.refused or self.failed or self.copied)
            and self.slots is None
            and not self.is_off
        )

    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "StepReceipts":
        if not isinstance(other, StepReceipts):
            raise TypeError(f"expected the receipts of another rank, got {type(other).__name__}")
        known = [slots for slots in (self.slots, other.slots) if slots is not None]
        return StepReceipts(
            self.tickets + other.tickets,
            _both(max, self.refused, other.refused),
            min(known, default=None),
            max(self.changed_at, other.changed_at),
            self.memory | other.memory,
            self.resolved | other.resolved,
            _both(min, self.checks, other.checks),
            _both(max, self.loads, other.loads),
            self.failed | other.failed,
            self.copied + other.copied,
            is_off=self.is_off or other.is_off,
        )


def _both(choose: Callable[[V, V], V], ours: dict[K, V], theirs: dict[K, V]) -> dict[K, V]:
    """Join two ranks' maps; `choose` picks the value of a common key."""
    joined = {**ours, **theirs}
    for key in ours.keys() & theirs.keys():
        joined[key] = choose(ours[key], theirs[key])
    return joined
