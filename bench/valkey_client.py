"""The reference client of Valkey: redis-py with hiredis. Prints GB/s of saves and restores by round as JSON.

Arguments: port, bytes of a block, blocks, rounds. Blocks are fetched with MGET, eight at a time, which is its fastest
way, and copied into memory that was touched before.
"""

import json
import os
import sys
import time

import redis

KEYS_PER_MGET = 8


def main() -> None:
    port, block_bytes, blocks, rounds = (int(text) for text in sys.argv[1:5])
    client = redis.Redis("127.0.0.1", port, protocol=2)
    data = os.urandom(block_bytes)
    target = bytearray(block_bytes * blocks)
    keys = [f"reference:{at}" for at in range(blocks)]
    rates: dict[str, list[float]] = {"save": [], "restore": []}
    for _ in range(rounds):
        client.delete(*keys)
        began = time.perf_counter()
        for key in keys:
            client.set(key, data)
        rates["save"].append(len(target) / (time.perf_counter() - began) / 1e9)
        began = time.perf_counter()
        for first in range(0, blocks, KEYS_PER_MGET):
            for at, value in enumerate(client.mget(keys[first : first + KEYS_PER_MGET]), first):
                target[at * block_bytes : (at + 1) * block_bytes] = value
        rates["restore"].append(len(target) / (time.perf_counter() - began) / 1e9)
        if target[-block_bytes:] != data:
            raise SystemExit("the last block differs")
    client.delete(*keys)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
