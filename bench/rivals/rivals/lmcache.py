"""LMCache's own remote clients, used without an engine.

`LMCacheRedis` and `LMCacheValkey` drive the "resp" L2 adapter, which LMCache's cache server
uses to fill its L1 memory: a native client, one GET per round trip and worker, received in
place. `LMCacheServer` drives the "lm://" connector and `lmcache_server`: Python at both ends,
one key per round trip. Neither verifies a checksum. In both, the arena stands in for
LMCache's own memory pool.
"""

import asyncio
import os
import select
import sys
from functools import cache

os.environ |= {"LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false"}

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.resp_l2_adapter import RESPL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector

from .base import HOST, Arena, Block, Lanes, Rival, Server, Setup, free_port
from .redis import RedisServer

MODEL = "rivals"
TIMEOUT_S = 60


class ArenaObjects:
    """LMCache memory objects over the arena's blocks; LMCache too keeps its pool's memory."""

    def __init__(self, arena: Arena):
        self.arena = arena
        self.tensor = torch.frombuffer(arena.memory, dtype=torch.uint8)
        self.of = cache(self._create)

    def all(self, blocks: list[Block]) -> list[TensorMemoryObj]:
        return [self.of(block.address, len(block.view)) for block in blocks]

    def _create(self, address: int, size: int) -> TensorMemoryObj:
        at = address - self.arena.address
        metadata = MemoryObjMetadata(
            torch.Size([size]),
            torch.uint8,
            address=at,
            phy_size=size,
            ref_count=1,
            fmt=MemoryFormat.BINARY_BUFFER,
        )
        return TensorMemoryObj(self.tensor[at : at + size], metadata, parent_allocator=None)


@cache
def object_key(key: str) -> ObjectKey:
    return ObjectKey(chunk_hash=bytes.fromhex(key), model_name=MODEL, kv_rank=0)


@cache
def engine_key(key: str) -> CacheEngineKey:
    return CacheEngineKey(MODEL, 1, 0, int(key[:16], 16), torch.uint8)


class LMCacheRedis(Rival):
    binary = "redis-server"

    def start(self, setup: Setup) -> None:
        self.server = RedisServer(self.binary)
        self.objects = ArenaObjects(setup.arena)
        self.adapter = create_l2_adapter(
            RESPL2AdapterConfig(HOST, self.server.port, num_workers=setup.lanes)
        )

    def put(self, keys, blocks):
        task = self.adapter.submit_store_task(
            [object_key(key) for key in keys], self.objects.all(blocks)
        )
        self._wait(self.adapter.get_store_event_fd())
        if not self.adapter.pop_completed_store_tasks()[task].is_successful():
            raise RuntimeError("LMCache: the store task failed")

    def get_into(self, keys, blocks):
        task = self.adapter.submit_load_task(
            [object_key(key) for key in keys], self.objects.all(blocks)
        )
        self._wait(self.adapter.get_load_event_fd())
        if self.adapter.query_load_result(task).popcount() != len(keys):
            raise RuntimeError("LMCache: the load task missed keys")

    def exists(self, keys):
        wanted = [object_key(key) for key in keys]
        task = self.adapter.submit_lookup_and_lock_task(wanted, {})
        self._wait(self.adapter.get_lookup_and_lock_event_fd())
        found = self.adapter.query_lookup_and_lock_result(task)
        self.adapter.submit_unlock(wanted)
        return [found.test(index) for index in range(len(keys))]

    def stop(self):
        self.adapter.close()
        self.server.stop()

    def server_pids(self):
        return [self.server.pid]

    @staticmethod
    def _wait(event_fd: int) -> None:
        if not select.select([event_fd], [], [], TIMEOUT_S)[0]:
            raise TimeoutError(f"LMCache did not answer within {TIMEOUT_S} s")
        os.eventfd_read(event_fd)


class LMCacheValkey(LMCacheRedis):
    binary = "valkey-server"


class LMCacheServer(Rival):
    def start(self, setup: Setup) -> None:
        port = free_port()
        self.server = Server(sys.executable, "-m", "lmcache.v1.server", HOST, str(port), port=port)
        self.objects = ArenaObjects(setup.arena)
        self.lanes = Lanes([LmLane(port) for _ in range(setup.lanes)])

    def put(self, keys, blocks):
        self.lanes.run(LmLane.put, keys, self.objects.all(blocks))

    def get_into(self, keys, blocks):
        self.lanes.run(LmLane.get, keys, self.objects.all(blocks))

    def exists(self, keys):
        return [found for part in self.lanes.run(LmLane.exists, keys) for found in part]

    def stop(self):
        for lane in self.lanes.clients:
            lane.close()
        self.lanes.close()
        self.server.stop()

    def server_pids(self):
        return [self.server.pid]


class LmLane:
    """One connector with its own event loop. It is the connector's memory pool as well."""

    def __init__(self, port: int):
        self.config = LMCacheEngineConfig.from_defaults()
        self.metadata = LMCacheMetadata(MODEL, 1, 1, 0, 0, torch.uint8, (1, 1, 256, 1, 1))
        self.loop = asyncio.new_event_loop()
        self.connector = LMCServerConnector(HOST, port, self.loop, self)

    def put(self, keys, objects):
        async def put_all():
            for key, memory_object in zip(keys, objects, strict=True):
                await self.connector.put(engine_key(key), memory_object)

        self.loop.run_until_complete(put_all())
        self.exists(keys[-1:])  # a put is not answered: wait until the server has read it

    def get(self, keys, objects):
        async def get_all():
            for key, self.target in zip(keys, objects, strict=True):
                if await self.connector.get(engine_key(key)) is None:
                    raise KeyError(key)

        self.loop.run_until_complete(get_all())

    def exists(self, keys) -> list[bool]:
        async def ask_all():
            return [await self.connector.exists(engine_key(key)) for key in keys]

        return self.loop.run_until_complete(ask_all())

    def allocate(self, shape, dtype, fmt):  # noqa: ARG002 - of LMCache
        return self.target

    def close(self):
        self.loop.run_until_complete(self.connector.close())
        self.loop.close()
