"""Redis and Valkey through redis-py with the hiredis parser.

Blocks are fetched with MGET, eight at a time: the largest replies are the slowest, because
server and client buffer a whole reply. The API returns `bytes`, so each block is copied once
more, into the arena.
"""

import shutil

import redis

from .base import HOST, Lanes, Rival, Server, Setup, free_port

KEYS_PER_MGET = 8


class RedisServer(Server):
    """An in-memory Redis or Valkey without persistence, at its default one I/O thread."""

    def __init__(self, binary: str):
        if shutil.which(binary) is None:
            raise FileNotFoundError(f"{binary} is not installed; run setup.sh")
        self.port = free_port()
        super().__init__(
            binary,
            "--bind",
            HOST,
            "--port",
            str(self.port),
            "--save",
            "",
            "--appendonly",
            "no",
            port=self.port,
        )


class Redis(Rival):
    binary = "redis-server"

    def start(self, setup: Setup) -> None:
        self.server = RedisServer(self.binary)
        self.lanes = Lanes(
            [redis.Redis(HOST, self.server.port, protocol=2) for _ in range(setup.lanes)]
        )

    def put(self, keys, blocks):
        self.lanes.run(self._put, keys, blocks)

    def get_into(self, keys, blocks):
        self.lanes.run(self._get, keys, blocks)

    def exists(self, keys):
        pipeline = self.lanes.clients[0].pipeline(transaction=False)
        for key in keys:
            pipeline.exists(key)
        return [found == 1 for found in pipeline.execute()]

    def stop(self):
        for client in self.lanes.clients:
            client.close()
        self.lanes.close()
        self.server.stop()

    def server_pids(self):
        return [self.server.pid]

    @staticmethod
    def _put(client, keys, blocks):
        for key, block in zip(keys, blocks, strict=True):
            client.set(key, block.view)

    @staticmethod
    def _get(client, keys, blocks):
        for at in range(0, len(keys), KEYS_PER_MGET):
            values = client.mget(keys[at : at + KEYS_PER_MGET])
            for block, value in zip(blocks[at : at + KEYS_PER_MGET], values, strict=True):
                block.view[:] = value


class Valkey(Redis):
    binary = "valkey-server"
