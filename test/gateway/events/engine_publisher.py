"""Publishes batches of stored blocks by vLLM's own publisher, and then answers replays until its stdin ends.

Usage: engine_publisher.py BATCHES BLOCKS. Prints one JSON line once all are published: its endpoints and the last hash.
"""

from __future__ import annotations

import json
import sys
import time

import zmq
from vllm.distributed.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

BLOCK = 16
VOCAB = 30_000
WAIT_S = 120.0
#: As vLLM publishes hashes of 64 bits.
STEP = 0x9E37_79B9_7F4A_7C15


def batch(number: int, blocks: int) -> KVEventBatch:
    """Give a prompt of its own, computed at once."""
    hashes = [((number * blocks + at + 1) * STEP) & ((1 << 64) - 1) for at in range(blocks)]
    tokens = [(number * 7919 + at) % VOCAB for at in range(blocks * BLOCK)]
    event = BlockStored(
        block_hashes=hashes,
        parent_block_hash=None,
        token_ids=tokens,
        block_size=BLOCK,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[None] * blocks,
        group_idx=0,
    )
    return KVEventBatch(ts=time.time(), events=[event])


def main() -> None:
    """Publish before anybody listens, as an engine does that is warm when a gateway starts."""
    batches, blocks = (int(argument) for argument in sys.argv[1:])
    publisher = ZmqEventPublisher(
        0, endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*"
    )
    for number in range(batches):
        publisher.publish(batch(number, blocks))
    end = time.monotonic() + WAIT_S
    while publisher._event_queue.unfinished_tasks:
        assert time.monotonic() < end, "the publisher is stuck"
        time.sleep(0.01)
    sockets = (publisher._pub, publisher._replay)
    places = [socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets if socket]
    sys.stdout.write(json.dumps([place.removeprefix("tcp://") for place in places]) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    publisher.shutdown()


if __name__ == "__main__":
    main()
