"""The worker side of one rank, its memory and its sidecar, driven by hand."""

import math
from typing import Any, Self

import torch
from tierkv.connectors.vllm.api.metadata import LoadPart, SaveItem, StepMetadata
from tierkv.connectors.vllm.engine.worker import WorkerShim
from tierkv.connectors.vllm.link.settings import Settings

from .engine import chain, connector_of, make_group, vllm_config
from .sidecar import FakeArena, FakeSidecar, pairs, wait_until

BLOCKS = 8
GROUP = make_group()
HASHES = chain("w", BLOCKS)
NAMESPACE = bytes(range(32))


class Rank:
    """A worker side with KV tensors of its own, and its sidecar. `memory`: float32, as many as all blocks take."""

    def __init__(
        self,
        path: str,
        sidecar: FakeSidecar | None,
        world: int = 1,
        rank: int = 0,
        copies: int = 1,
        memory: torch.Tensor | None = None,
    ) -> None:
        self.sidecar = sidecar
        self.arenas: list[FakeArena] = []
        shape = (len(GROUP.layer_names), BLOCKS, GROUP.heads, GROUP.block_tokens, 6)
        if memory is None:
            memory = torch.arange(math.prod(shape), dtype=torch.float32)
        self.memory = memory.reshape(shape)
        config = vllm_config(world=world, rank=rank)
        settings = Settings(path, "test", autostart=False)
        self.shim = WorkerShim(config, settings, [GROUP], BLOCKS, copies=copies)
        tensors = {name: self.memory[index] for index, name in enumerate(GROUP.layer_names)}
        self.shim.register_kv_caches(tensors)
        self.shim.introduce()  # as vLLM does before the first step
        self.connector = connector_of(self.shim)

    def __enter__(self) -> Self:
        return self

    @property
    def fake(self) -> FakeSidecar:
        assert self.sidecar is not None
        return self.sidecar

    def give_arena(self, arena_id: int = 1, slots: int = 6) -> FakeArena:
        """Announces an arena and waits until the worker has mapped it."""
        self.fake.expect("register", len(self.arenas) + 1)
        self.arenas.append(FakeArena(GROUP.block_bytes, slots))
        self.fake.send(self.arenas[-1].frame(arena_id))
        self.fake.expect("mapped", len(self.arenas))
        return self.arenas[-1]

    def give_credits(self, *slots: tuple[int, int], arena_id: int = 1) -> None:
        before = self.shim.status()["credits"]
        self.fake.send({"t": "credits", "arena": arena_id, "slots": pairs(*slots)})
        wait_until(lambda: self.shim.status()["credits"] == before + len(slots), "the credits")

    def page(self, block: int) -> bytes:
        return bytes(self.memory[:, block].contiguous().numpy().data)

    def save(
        self,
        *blocks: int,
        ticket: int = 1,
        has_forward: bool = True,
        namespace: bytes = NAMESPACE,
    ) -> dict[int, int]:
        self.step(*blocks, ticket=ticket, has_forward=has_forward, namespace=namespace)
        receipts = self.shim.take_receipts()
        return dict(receipts.tickets) if receipts else {}

    def step(
        self,
        *blocks: int,
        ticket: int = 1,
        has_forward: bool = True,
        namespace: bytes = NAMESPACE,
    ) -> None:
        items = [SaveItem(0, b, HASHES[b], HASHES[b - 1], 4 * b) for b in blocks]
        step = StepMetadata(
            has_forward=has_forward, namespace=namespace, ticket=ticket, saves=items
        )
        self.shim.start_load_kv(step)
        if has_forward:
            self.memory[:, list(blocks)] += 1  # the forward writes: only now the pages are whole
            self.shim.wait_for_save(step)

    def load(self, blocks: list[int], slots: list[int], **changes: Any) -> None:
        fields = {"req_id": "r", "arena": 1, "group": 0, "last": True, **changes}
        part = LoadPart(block_ids=blocks, slots=slots, **fields)
        self.shim.start_load_kv(StepMetadata(loads=[part]))

    def __exit__(self, *_: object) -> None:
        self.shim.shutdown()
        for arena in self.arenas:
            arena.close()
