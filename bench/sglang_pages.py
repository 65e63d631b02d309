"""Owns the measuring of restores into SGLang's own host pool: tierKV's storage beside SGLang's in files and Mooncake's.

Runs in SGLang's environment. Prints one JSON line: seconds of a whole prompt's look-up and reads, by storage and round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    STORAGE_BATCH_SIZE,
    HiCacheFile,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.runtime_context import get_context  # noqa: E402
from sglang_mooncake import Mooncake  # noqa: E402
from tierkv.sglang.storage import TierKVStorage  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

#: Llama-3.1-8B's shape.
LAYERS, HEADS, DIM = 32, 8, 128
WAIT_S = 60.0


def make_pool(layout: str, page: int, tokens: int) -> Any:
    """Return a host pool of SGLang with room for the prompt; its device pool is one page."""
    device = MHATokenToKVPool(page, page, torch.bfloat16, HEADS, DIM, LAYERS, "cpu", False)
    more = {"device_capacity_tokens": tokens, "start_layer": 0, "end_layer": LAYERS}
    return MHATokenToKVPoolHost(info_of(device), 1.0, 0, page, layout, pin_memory=False, **more)


def info_of(device: Any) -> Any:
    """Return the description from which SGLang makes host pools, whatever its method is called."""
    names = [
        name for name in dir(device) if "info" in name and "buf" in name and "contig" not in name
    ]
    return getattr(device, names[0])()


def batches(keys: list[str]) -> list[tuple[int, list[str]]]:
    """Return the reads that HiCache makes of a prompt, each with its first page."""
    size = STORAGE_BATCH_SIZE
    return [(at, keys[at : at + size]) for at in range(0, len(keys), size)]


def read_files(files: HiCacheFile, pool: Any, keys: list[str], at: torch.Tensor) -> int:
    """Do what HiCache's controller does with its file back-end (`_generic_page_get`); return the pages read."""
    found = files.batch_exists(keys)
    done = 0
    for start, some in batches(keys[:found]):
        rooms = [pool.get_dummy_flat_data_page() for _ in some]
        for number, data in enumerate(files.batch_get(some, rooms)):
            if data is None:
                return done
            pool.set_from_flat_data_page(int(at[(start + number) * pool.page_size]), data)
            done += 1
    return done


def read_pages(storage: Any, pool: Any, keys: list[str], at: torch.Tensor) -> int:
    """Do what HiCache's controller does with storages that fill the pool (`_page_get_zero_copy`); return pages read."""
    found = storage.batch_exists(keys, HiCacheStorageExtraInfo([]))
    done = 0
    for start, some in batches(keys[:found]):
        room = at[start * pool.page_size : (start + len(some)) * pool.page_size]
        done += sum(storage.batch_get_v1(some, room, HiCacheStorageExtraInfo(keys[:start])))
    return done


def measure(read: Callable[..., int], storage: Any, pool: Any, keys: list[str], at: Any) -> float:
    """Return the seconds of reading all pages into an emptied pool. Raises RuntimeError unless all are as saved."""
    want = pool.kv_buffer.clone()
    pool.kv_buffer.zero_()
    began = time.perf_counter()
    done = read(storage, pool, keys, at)
    seconds = time.perf_counter() - began
    if done != len(keys) or not torch.equal(pool.kv_buffer, want):
        raise RuntimeError(
            f"{type(storage).__name__} brought {done} of {len(keys)} pages, or other bytes"
        )
    return seconds


def keep(storage: Any, pool: Any, keys: list[str], at: torch.Tensor) -> None:
    """Save all pages, and wait until the storage has them."""
    until = time.monotonic() + WAIT_S
    saved = 0
    while saved < len(keys):  # slots come back as the vault takes the pages
        some = keys[saved : saved + STORAGE_BATCH_SIZE]
        room = at[saved * pool.page_size : (saved + len(some)) * pool.page_size]
        saved += sum(storage.batch_set_v1(some, room, HiCacheStorageExtraInfo(keys[:saved])))
        if time.monotonic() > until:
            raise RuntimeError(f"{saved} of {len(keys)} pages were saved in time")
    while storage.batch_exists(keys, HiCacheStorageExtraInfo([])) < len(keys):
        if time.monotonic() > until:
            raise RuntimeError("the storage did not get all pages in time")
        time.sleep(0.05)


def start_ours(config: HiCacheStorageConfig, path: str, pool: Any) -> TierKVStorage:
    """Return tierKV's storage, connected to the sidecar of a configuration."""
    config.extra_config = {"interface_v1": 1, "config_path": path}
    ours = TierKVStorage(config, {})
    ours.register_mem_pool_host(pool)
    ours.on_host_pools_registered()
    assert ours._link is not None  # noqa: SLF001
    if not ours._link.wait_until_on(WAIT_S):  # noqa: SLF001
        raise RuntimeError("the sidecar did not get ready in time")
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind in (("config", str), ("folder", str), ("model", str), ("layout", str)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name in ("tokens", "page", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--mooncake", type=Path, help="environment with Mooncake")
    given = parser.parse_args()
    load_plugins()
    args = {
        "model_path": given.model,
        "hicache_storage_backend": "dynamic",
        "hicache_storage_backend_extra_config": '{"hicache_storage_pass_prefix_keys": true}',
        "page_size": given.page,
        "device": "cpu",
    }
    get_context().override_server_args(**args).install()
    pool = make_pool(given.layout, given.page, given.tokens)
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "bench")
    config.extra_config = {"file_storage_path": given.folder}
    files = HiCacheFile(config)
    ours = start_ours(config, given.config, pool)
    pages = given.tokens // given.page
    keys = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(pages)]
    at = pool.alloc(pages * given.page)
    for number, key in enumerate(keys):
        index = int(at[number * given.page])
        page = torch.randn(pool.get_data_page(index).shape).to(torch.bfloat16)
        pool.set_from_flat_data_page(index, page)
        files.set(key, pool.get_data_page(index))
    keep(ours, pool, keys, at)
    storages: dict[str, tuple[Callable[..., int], Any]] = {
        "files": (read_files, files),
        "ours": (read_pages, ours),
    }
    mooncake = None
    if given.mooncake is not None:
        mooncake = Mooncake(given.mooncake, config, pool)
    try:
        if mooncake is not None:
            keep(mooncake.storage, pool, keys, at)
            storages["mooncake"] = read_pages, mooncake.storage
        found: dict[str, list[float]] = {name: [] for name in storages}
        for number in range(given.rounds + 1):  # the first one warms all of them up
            for name, (read, storage) in storages.items():
                seconds = measure(read, storage, pool, keys, at)
                if number:
                    found[name].append(seconds)
    finally:
        if mooncake is not None:
            mooncake.close()
    ours.close()
    bytes_ = pages * pool.size_per_token * given.page
    sys.stdout.write(json.dumps({"pages": pages, "bytes": bytes_, **found}) + "\n")


if __name__ == "__main__":
    main()
