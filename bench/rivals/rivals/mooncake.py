"""Mooncake Store over TCP: a master, one storage node, and a client without storage of its own.

`batch_put_from` and `batch_get_into` move bytes between the node's segment and the arena,
which is registered with the client once. Mooncake verifies no checksum unless
MOONCAKE_STORE_CHECKSUM=1 is set.
"""

import os
import signal
import socket
import sys

from .base import HOST, Rival, Server, Setup, free_port

SEGMENT_BYTES = 2 << 30
CLIENT_BUFFER_BYTES = 16 << 20
LEASE_MS = 600_000  # longer than any run: a lease that ends would let the master evict


class Mooncake(Rival):
    def start(self, setup: Setup) -> None:
        # Read by both ends when they start.
        os.environ |= {"MC_TCP_LANES_PER_PEER": str(setup.lanes), "MC_LOG_LEVEL": "ERROR"}
        rpc, metrics, ready = free_port(), free_port(), free_port()
        self.master = Server(
            os.path.join(os.path.dirname(sys.executable), "mooncake_master"),
            f"--rpc_address={HOST}", f"--rpc_port={rpc}",
            f"--metrics_host={HOST}", f"--metrics_port={metrics}",
            f"--default_kv_lease_ttl={LEASE_MS}",
            port=rpc,
        )  # fmt: skip
        self.node = Server(sys.executable, "-m", __name__, str(rpc), str(ready), port=ready)
        self.client = open_store(rpc, segment_bytes=0)
        self.arena = setup.arena
        check(
            self.client.register_buffer(setup.arena.address, setup.arena.size) == 0,
            "register_buffer",
        )

    def put(self, keys, blocks):
        results = self.client.batch_put_from(keys, addresses(blocks), sizes(blocks))
        check(not any(results), "batch_put_from")

    def get_into(self, keys, blocks):
        wanted = sizes(blocks)
        check(
            self.client.batch_get_into(keys, addresses(blocks), wanted) == wanted, "batch_get_into"
        )

    def exists(self, keys):
        return [found == 1 for found in self.client.batch_is_exist(keys)]

    def stop(self):
        self.client.unregister_buffer(self.arena.address)
        self.client.close()
        self.node.stop()
        self.master.stop()

    def server_pids(self):
        return [self.master.pid, self.node.pid]


class MooncakeChecked(Mooncake):
    """With Mooncake's own checksum of every payload."""

    def start(self, setup: Setup) -> None:
        os.environ["MOONCAKE_STORE_CHECKSUM"] = "1"
        super().start(setup)


def addresses(blocks) -> list[int]:
    return [block.address for block in blocks]


def sizes(blocks) -> list[int]:
    return [len(block.view) for block in blocks]


def check(done: bool, call: str) -> None:
    if not done:
        raise RuntimeError(f"Mooncake: {call} failed; set RIVALS_DEBUG=1 to see why")


def open_store(master_port: int, segment_bytes: int):
    from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415 - only its own processes load it

    store = MooncakeDistributedStore()
    master = f"{HOST}:{master_port}"
    check(
        store.setup(HOST, "P2PHANDSHAKE", segment_bytes, CLIENT_BUFFER_BYTES, "tcp", "", master)
        == 0,
        "setup",
    )
    return store


def main(master_port: int, ready_port: int) -> None:
    """The storage node: offers its segment, then says so by listening on `ready_port`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before Mooncake starts its threads
    store = open_store(master_port, SEGMENT_BYTES)
    with socket.create_server((HOST, ready_port)):
        signal.sigwait([signal.SIGTERM])
    store.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
