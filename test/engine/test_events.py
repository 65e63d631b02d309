"""KV-cache events of the storage tier, received by a real subscriber: the blocks that vaults hold."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until
from harness.releases import MAIN, OLDEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.engine import Engine, Engines
    from harness.processes import Cluster

BLOCK = 32
BLOCKS = 5
CONNECT_MS = 60_000
TEXT = prompt(71, BLOCKS * BLOCK + 1)
OTHER = prompt(72, BLOCKS * BLOCK + 1)

Event = dict[str, Any]


class Subscriber:
    """Receives an engine's events as any router does; keeps the storage tier's blocks."""

    def __init__(self, place: str) -> None:
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.subscribe(b"")
        self._states: Any = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(place)
        self.engine: dict[int, Event] = {}
        self.storage: dict[int, Event] = {}

    def wait_connected(self) -> None:
        """Waits for the subscription, because earlier events are lost and the engine answers before it is connected."""
        assert self._states.poll(CONNECT_MS), "the engine's publisher was not found"

    def hear(self) -> None:
        while self._socket.poll(0):
            _, _, payload = self._socket.recv_multipart()
            for event in msgspec.msgpack.decode(payload)[1]:
                self._take(event)

    def _take(self, event: Event) -> None:
        is_storage = event.get("medium") == "STORAGE"
        if is_storage:
            assert event["locality"] == "REMOTE"
            assert MAIN == OLDEST or event["ownership"] == "tierkv"  # 0.28 has no field for it
        held = self.storage if is_storage else self.engine
        if event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                del held[name]  # each removal follows a store
        elif event["type"] == "BlockStored":
            size, parent = event["block_size"], event["parent_block_hash"]
            for at, name in enumerate(event["block_hashes"]):
                tokens = event["token_ids"][at * size : (at + 1) * size]
                held[name] = {"tokens": tokens, "parent": parent, "group": event.get("group_idx")}
                parent = name

    def wait(self, blocks: int, engine: Engine) -> None:
        """Waits until the storage tier holds so many blocks; steps the engine, because vLLM publishes with a step."""

        def has() -> bool:
            engine.call("generate", prompts=[[1, 2, 3]], max_tokens=1)
            self.hear()
            return len(self.storage) == blocks

        try:
            wait_until(has, f"{blocks} blocks in the storage tier")
        except AssertionError as error:
            raise AssertionError(f"{error}; it has {len(self.storage)}") from None

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close(linger=0)


@pytest.fixture(scope="module")
def subscriber(folder: Path) -> Iterator[Subscriber]:
    made = Subscriber(f"ipc://{folder}/events.sock")
    yield made
    made.close()
    (folder / "events.sock").unlink(missing_ok=True)  # vLLM leaves it behind


@pytest.fixture(scope="module")
def cluster(new_cluster: Callable[..., Cluster]) -> Cluster:
    return new_cluster()


@pytest.fixture(scope="module")
def engine(
    engines: Engines, cluster: Cluster, models: Models, folder: Path, subscriber: Subscriber
) -> Engine:
    events = {"enable_kv_cache_events": True, "publisher": "zmq"}
    events["endpoint"] = f"ipc://{folder}/events.sock"
    options = {"model": models.path(PLAIN), "dtype": PLAIN.dtype, "block_size": BLOCK}
    options["kv_transfer_config"] = cluster.transfer_config
    line = ["--kv-events-config", json.dumps(events)]
    started = engines.start(vllm=options, launch_line=line).wait_up()
    subscriber.wait_connected()
    return started


def test_a_subscriber_hears_what_a_vault_holds_and_when_it_does_not(
    engine: Engine, cluster: Cluster, subscriber: Subscriber
) -> None:
    engine.call("generate", prompts=[TEXT])
    subscriber.wait(BLOCKS, engine)
    chain = sorted(subscriber.storage.values(), key=lambda block: TEXT.index(block["tokens"][0]))
    assert sorted(token for block in chain for token in block["tokens"]) == sorted(TEXT[:-1])
    for name, block in subscriber.storage.items():
        assert subscriber.engine[name] == block  # named like the engine's own blocks
    assert cluster.command("flush", "--yes")[0] == 0
    subscriber.wait(0, engine)
    engine.call("generate", prompts=[OTHER])
    subscriber.wait(BLOCKS, engine)
    cluster.vault.kill()
    subscriber.wait(0, engine)
    assert len(subscriber.engine) >= 2 * BLOCKS  # the engine's own cache is separate
    cluster.vault.start()
    seeds = itertools.count(80)

    def is_told() -> bool:
        """Computes new text each time, because blocks computed while the vault is away are stored nowhere."""
        engine.call("generate", prompts=[prompt(next(seeds), BLOCKS * BLOCK + 1)], max_tokens=1)
        subscriber.hear()
        return len(subscriber.storage) > 0

    wait_until(is_told, "what a vault holds that was started again")
