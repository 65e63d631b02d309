"""What a flush without a scan costs in Valkey: names with generations beside sets of names. Prints one line for each.

Arguments: port of an empty server, and records (20,000 by default). Records have the names and a hundredth of the bytes
of ours.
"""

import os
import sys
import time

import redis

NAME_BYTES = 85
RECORD_BYTES = 2_600
BATCH = 100


def used(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def filled(client: redis.Redis, count: int, *, with_sets: bool) -> tuple[float, float]:
    """Stores records; returns microseconds and bytes of memory for each."""
    client.execute_command("FLUSHALL", "SYNC")
    before, began = used(client), time.perf_counter()
    for _ in range(0, count, BATCH):
        pipeline = client.pipeline(transaction=False)
        for _ in range(BATCH):
            name = os.urandom(NAME_BYTES)
            pipeline.set(name, bytes(RECORD_BYTES), nx=True)
            if with_sets:
                # A set for the namespace and one for the tenant; those of model and class are sets of namespaces.
                pipeline.sadd("of-namespace", name)
                pipeline.sadd("of-tenant", name)
        pipeline.execute()
    return (time.perf_counter() - began) / count * 1e6, (used(client) - before) / count


def flushed_set(client: redis.Redis) -> float:
    began = time.perf_counter()
    while names := client.spop("of-namespace", BATCH):
        client.unlink(*names)
    return time.perf_counter() - began


def flushed_generation(client: redis.Redis) -> float:
    began = time.perf_counter()
    client.hset("flushes", os.urandom(8), b"everything")
    client.hincrby("flushes", "n", 1)
    return time.perf_counter() - began


def main() -> None:
    port, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
    client = redis.Redis("127.0.0.1", port, protocol=2)
    for name, with_sets in (("generations", False), ("sets", True)):
        us, size = filled(client, count, with_sets=with_sets)
        flush_s = flushed_set(client) if with_sets else flushed_generation(client)
        print(
            f"{name}: {us:.1f} us and {size:.0f} bytes a record, "
            f"a flush of {count} records in {flush_s * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    main()
