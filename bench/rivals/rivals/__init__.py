"""Stores that can hold KV blocks, each behind the interface in `base.Rival`."""

from importlib import import_module
from typing import NamedTuple

from .base import Rival


class Entry(NamedTuple):
    """Place of a rival's class, and its default number of lanes."""

    module: str
    name: str
    lanes: int


# Loaded on demand, so that one rival's libraries never weigh on another's process.
RIVALS = {
    "memcpy": Entry("memcpy", "Memcpy", 1),
    "tcp": Entry("tcp", "Tcp", 2),
    "redis": Entry("redis", "Redis", 1),
    "valkey": Entry("redis", "Valkey", 1),
    "mooncake": Entry("mooncake", "Mooncake", 4),
    "mooncake-crc": Entry("mooncake", "MooncakeChecked", 4),
    "lmcache": Entry("lmcache", "LMCacheRedis", 8),
    "lmcache-valkey": Entry("lmcache", "LMCacheValkey", 8),
    "lmcache-lm": Entry("lmcache", "LMCacheServer", 1),
    "tierkv": Entry("tierkv", "TierKv", 4),
    "tierkv-int8": Entry("tierkv", "TierKvInt8", 4),
}


def create(name: str) -> Rival:
    entry = RIVALS[name]
    rival: Rival = getattr(import_module(f".{entry.module}", __package__), entry.name)()
    return rival
