"""What travels between the two halves of the shim with vLLM's own messages: work for one step, and its receipts."""

from collections import Counter
from dataclasses import dataclass, field

from tierkv.connectors.vllm.compat import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass(frozen=True, slots=True)
class SaveItem:
    """One block to copy into the arena after this step's forward. Hashes are 32 bytes; `tenant` is 0 without a salt."""

    group: int
    block_id: int
    block_hash: bytes
    parent_hash: bytes
    end_tokens: int
    tenant: int = 0


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Part of one admission: blocks to fill from arena slots.

    `slots` holds the slot numbers of every shard of each block; ranks that hold the same pages read the same slot. With
    `last` set the request is reported as received, once for this admission.
    """

    req_id: str
    arena: int
    group: int
    block_ids: list[int]
    slots: list[int]
    last: bool


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Work for one engine step. `ticket` numbers the step's saves; the worker hands it back when they are copied.

    `has_forward` is False on steps without tokens: they copy what earlier steps put off. `tokens` and `attended` say
    how much prompt the step computes, for the worker to measure: tokens, and pairs of a token and one before; else 0.
    """

    has_forward: bool = False
    ticket: int = 0
    saves: list[SaveItem] = field(default_factory=list)
    loads: list[LoadPart] = field(default_factory=list)
    tokens: int = 0
    attended: int = 0


@dataclass
class StepReceipts(KVConnectorWorkerMetadata):
    """Tickets whose source blocks were copied or dropped, with the number of ranks that say so."""

    tickets: Counter[int] = field(default_factory=Counter)

    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "StepReceipts":
        """Add up the receipts of two ranks."""
        if not isinstance(other, StepReceipts):
            raise TypeError(f"expected the receipts of another rank, got {type(other).__name__}")
        return StepReceipts(self.tickets + other.tickets)
