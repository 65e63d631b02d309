"""A program with SGLang's own pools and tierKV's storage, in its own interpreter, without an engine.

Reads one JSON line per command from standard input, and answers each with one. Imports nothing of the other tests.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from tierkv.sglang.generation import CURRENT  # noqa: E402
from tierkv.sglang.storage import TierKVStorage  # noqa: E402

PAGE = 16
PAGES = 24
LAYERS = 3


class Rank:
    """One rank's device pool, host pool and storage."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._layout, self._io = order["layout"], order["io"]
        self._is_mla = bool(order.get("mla"))
        dtype = getattr(torch, order.get("dtype", "bfloat16"))
        size = PAGES * PAGE
        if self._is_mla:
            self.device = MLATokenToKVPool(size, PAGE, dtype, 64, 32, LAYERS, "cpu", False)
            self._buffers = list(self.device.kv_buffer)
        else:
            heads = order.get("heads", 2)
            self.device = MHATokenToKVPool(size, PAGE, dtype, heads, 32, LAYERS, "cpu", False)
            self._buffers = [*self.device.k_buffer, *self.device.v_buffer]
        self.host = self._host_pool(size)
        tp = order.get("tp", 0), order.get("tp_size", 1)
        config = HiCacheStorageConfig(
            *tp, 0, 1, 0, 1, self._is_mla, False, self._layout == "page_first", "tiny"
        )
        config.extra_config = {"interface_v1": 1, "config_path": order["config"]}
        self.storage = TierKVStorage(config, {})
        self.storage.register_mem_pool_host(self.host)

    def _host_pool(self, size: int) -> Any:
        info = next(
            getattr(self.device, name)()
            for name in dir(self.device)
            if "buffer_info" in name or ("info" in name and "buf" in name and "contig" not in name)
        )
        more = {"device_capacity_tokens": size, "start_layer": 0, "end_layer": LAYERS}
        if self._is_mla:
            more["target_layer_num"] = LAYERS
        kind = MLATokenToKVPoolHost if self._is_mla else MHATokenToKVPoolHost
        return kind(info, 2.0, 0, PAGE, self._layout, **more)

    def fill(self, seed: int, pages: int) -> None:
        """Write random values to the device's pages behind the first, which SGLang keeps for padding."""
        chance = torch.Generator().manual_seed(seed)
        for buffer in self._buffers:
            room = buffer[PAGE : PAGE * (pages + 1)]
            room.copy_(torch.randn(room.shape, generator=chance).to(buffer.dtype))

    def digest(self, pages: int) -> str:
        """Name the device's bytes."""
        digest = hashlib.sha256()
        for buffer in self._buffers:
            room = buffer[PAGE : PAGE * (pages + 1)].contiguous()
            digest.update(room.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def save(self, keys: list[str], prefix: list[str]) -> list[bool]:
        """Copy the device's pages to the host, and save them."""
        rows = torch.arange(PAGE, PAGE * (len(keys) + 1))
        at = self.host.alloc(len(rows))
        self.host.backup_from_device_all_layer(self.device, at, rows, self._io)
        done = self.storage.batch_set_v1(keys, at, HiCacheStorageExtraInfo(prefix))
        self.host.free(at)
        return done

    def read(self, keys: list[str], prefix: list[str]) -> list[bool]:
        """Restore pages to the host in one call, after a look-up or without one."""
        at = self.host.alloc(PAGE * len(keys))
        done = self.storage.batch_get_v1(keys, at, HiCacheStorageExtraInfo(prefix))
        self.host.free(at)
        return done

    def load(self, keys: list[str], prefix: list[str], batch: int) -> dict[str, Any]:
        """Restore pages to host and device, which are emptied first."""
        for buffer in self._buffers:
            buffer.zero_()
        self.host.kv_buffer.zero_()
        about = HiCacheStorageExtraInfo(prefix)
        count = self.storage.batch_exists(keys, about)
        rows = torch.arange(PAGE, PAGE * (count + 1))
        at = self.host.alloc(len(rows))
        done: list[bool] = []
        for start in range(0, count, batch):
            some = keys[start : min(start + batch, count)]
            before = HiCacheStorageExtraInfo([*prefix, *keys[:start]])
            room = at[start * PAGE : (start + len(some)) * PAGE]
            done += self.storage.batch_get_v1(some, room, before)
        for layer in range(LAYERS if count else 0):
            self.host.load_to_device_per_layer(self.device, at, rows, layer, self._io)
        self.host.free(at)
        return {"found": count, "done": done, "digest": self.digest(len(keys))}


def keys_of(seed: str, count: int) -> list[str]:
    """Return a chain of page hashes."""
    keys, last = [], hashlib.sha256(seed.encode()).hexdigest()
    for number in range(count):
        last = hashlib.sha256(f"{last} {number}".encode()).hexdigest()
        keys.append(last)
    return keys


ARGUMENTS = {
    "hicache_storage_backend": "dynamic",
    "hicache_storage_backend_extra_config": '{"hicache_storage_pass_prefix_keys": true}',
    "page_size": PAGE,
    "device": "cpu",
}


def add(ranks: dict[str, Rank], name: str, order: dict[str, Any]) -> dict[str, Any]:
    """Make a rank with SGLang's arguments of its own; answer why it was refused, if it was."""
    args = {**ARGUMENTS, "model_path": order["model"], **order.get("arguments", {})}
    with get_context().override_server_args(**args):
        try:
            rank = Rank(order)
            for pool in order.get("others", []):
                rank.storage.register_mem_host_pool_v2(object(), pool)
            rank.storage.on_host_pools_registered()
        except (RuntimeError, ValueError) as error:
            return {"refused": str(error)}
    ranks[name] = rank
    return {"refused": ""}


def main() -> None:
    load_plugins()
    ranks: dict[str, Rank] = {}
    say({"ready": True})
    for line in sys.stdin:
        what, options = json.loads(line)
        say(add(ranks, **options) if what == "add" else answer(ranks, what, options))
    for rank in ranks.values():
        rank.storage.close()


def answer(ranks: dict[str, Rank], what: str, options: dict[str, Any]) -> Any:
    """Run one command."""
    notes = {
        "change": CURRENT.note_change,
        "compute": CURRENT.note_pages,
        "flush": CURRENT.note_flush,
    }
    if what in notes:
        notes[what]()
        return {}
    if what == "arguments":
        return sorted(ServerArgs.__struct_fields__)
    rank = ranks[options["rank"]]
    if what == "named":
        assert rank.storage._link is not None
        return {"named": rank.storage._link.wait_until_on(60.0)}
    if what == "counters":
        return rank.storage._counters.snapshot()
    if what == "name":
        naming = rank.storage._naming
        assert naming is not None
        digest, parts = naming.name(0)
        return {"name": digest.hex(), "parts": parts, "refused": naming.refused}
    if what == "fill":
        rank.fill(options["seed"], options["pages"])
        return {"digest": rank.digest(options["pages"])}
    every = keys_of(options["chain"], options["skip"] + options["pages"])
    prefix, keys = every[: options["skip"]], every[options["skip"] :]
    if what == "save":
        return {"done": rank.save(keys, prefix)}
    if what == "exists":
        return {"found": rank.storage.batch_exists(keys, HiCacheStorageExtraInfo(prefix))}
    if what == "read":
        return {"done": rank.read(keys, prefix)}
    if what == "load":
        return rank.load(keys, prefix, options["batch"])
    raise ValueError(what)


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
