"""Owns SGLang's Mooncake storage for a bench: a master, a node that holds the pages, and SGLang's own class as client.

Mooncake listens on all interfaces, so it belongs into a network namespace of its own. `bench/rivals/setup.sh` installs
it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

RIVALS = Path(__file__).resolve().parent / "rivals"
#: Longer than any run, because the master may evict what no lease holds.
LEASE_MS = 600_000


class Mooncake:
    """`storage`: SGLang's class, connected to a node of its own over TCP, with `lanes` connections."""

    def __init__(self, venv: Path, config: Any, pool: Any, lanes: int = 4) -> None:
        """`config`: SGLang's `HiCacheStorageConfig`. `pool`: the host pool that pages are read into."""
        os.environ |= {"MC_TCP_LANES_PER_PEER": str(lanes), "MC_LOG_LEVEL": "ERROR"}
        # Last, so that of this environment only what SGLang's own lacks is taken.
        sys.path += [str(RIVALS), *map(str, (venv / "lib").glob("python*/site-packages"))]
        from rivals.base import HOST, Server, free_port  # noqa: PLC0415 - its folder is known now

        rpc, metrics, ready = free_port(), free_port(), free_port()
        self._servers = [
            Server(
                str(venv / "bin" / "mooncake_master"),
                f"--rpc_address={HOST}",
                f"--rpc_port={rpc}",
                f"--metrics_host={HOST}",
                f"--metrics_port={metrics}",
                f"--default_kv_lease_ttl={LEASE_MS}",
                port=rpc,
            )
        ]
        try:
            python = str(venv / "bin" / "python")
            node = Server(python, "-m", "rivals.mooncake", str(rpc), str(ready), port=ready)
            self._servers.append(node)
            self.storage = self._connect(config, pool, f"{HOST}:{rpc}", HOST)
        except BaseException:
            self.close()
            raise

    def _connect(self, config: Any, pool: Any, master: str, host: str) -> Any:
        from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import (  # noqa: PLC0415
            MooncakeStore,
        )

        config.extra_config = {
            "master_server_address": master,
            "local_hostname": host,
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
            "device_name": "",
            "global_segment_size": 0,
        }
        storage = MooncakeStore(config, pool)
        storage.register_mem_pool_host(pool)
        return storage

    def close(self) -> None:
        for server in reversed(self._servers):
            server.stop()
