"""Two data-parallel ranks of one `vllm serve`: both save, restore and publish, and a gateway tells them apart."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq
from harness.gateway import Gateway
from harness.models import PLAIN, Models, prompt
from harness.processes import Cluster, free_port, wait_until
from harness.releases import MAIN, OLDEST
from harness.server import Server
from tierkv.connectors.vllm import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: A server of two ranks takes more than a minute to start.
pytestmark = pytest.mark.nightly

BLOCK = 32
BLOCKS = 4
RANKS = (0, 1)
#: Publishers take a port each, beginning with the one that is named.
PORTS_MAX = 100


def neighbours() -> int:
    """Returns a free port whose next one was free, too."""
    for _ in range(PORTS_MAX):
        first = free_port()
        with zmq.Context() as context, context.socket(zmq.PUB) as tried:
            try:
                tried.bind(f"tcp://127.0.0.1:{first + 1}")
            except zmq.ZMQError:
                continue
            return first
    raise AssertionError("no two free ports side by side")


class Ranks:
    """The server, and what each rank has published: batches of (rank, events)."""

    def __init__(self, server: Server, cluster: Cluster, port: int) -> None:
        self.server, self.cluster, self.port = server, cluster, port
        self._sockets: list[Any] = [zmq.Context.instance().socket(zmq.SUB) for _ in RANKS]
        for rank, one in enumerate(self._sockets):
            one.subscribe(b"")
            one.connect(f"tcp://127.0.0.1:{port + rank}")
        self.heard: list[dict[str, set[Any]]] = [
            {"ranks": set(), "own": set(), "storage": set()} for _ in RANKS
        ]

    def hear(self) -> None:
        for rank, one in enumerate(self._sockets):
            while one.poll(0):
                _, events, of_rank = msgspec.msgpack.decode(one.recv_multipart()[2])
                self.heard[rank]["ranks"].add(of_rank)
                for event in events:
                    if event["type"] == "BlockStored":
                        kind = "storage" if event.get("medium") == "STORAGE" else "own"
                        self.heard[rank][kind].update(event["block_hashes"])

    def ask(self, text: list[int], rank: int) -> tuple[str, int]:
        """Returns a rank's answer, and how many tokens of the prompt were not computed."""
        answer = self.server.complete(text, **{"X-data-parallel-rank": str(rank)})
        details = answer["usage"]["prompt_tokens_details"] or {}
        return answer["choices"][0]["text"], details.get("cached_tokens") or 0

    def close(self) -> None:
        for one in self._sockets:
            one.close(linger=0)


@pytest.fixture(scope="module")
def ranks(new_cluster: Callable[..., Cluster], models: Models, folder: Path) -> Iterator[Ranks]:
    cluster, port = new_cluster(), neighbours()
    events = {"enable_kv_cache_events": True, "publisher": "zmq"}
    events["endpoint"] = f"tcp://*:{port}"
    line = ["vllm", "serve", "MODEL", "--block-size", str(BLOCK), "--enable-prompt-tokens-details"]
    line += ["--data-parallel-size", "2", "--kv-events-config", json.dumps(events)]
    line += ["--kv-transfer-config", json.dumps(cluster.transfer_config)]
    place = folder / "ranks"
    place.mkdir()
    environment = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with Server(line, models.path(PLAIN), place / "server.log", environment) as server:
        cluster.wait_restoring(len(RANKS))
        found = Ranks(server, cluster, port)
        for rank in RANKS:  # on CPUs with AMX a load before the first large step is shorter
            found.ask(prompt(970 + rank, limits.AMX_FIRST_TOKENS), rank)
        yield found
        found.close()


@pytest.mark.parametrize("first", RANKS)
def test_what_one_rank_saved_the_other_restores(ranks: Ranks, first: int) -> None:
    text = prompt(980 + first, BLOCKS * BLOCK + 3)
    saved = ranks.cluster.saved()
    cold = ranks.ask(text, first)
    ranks.cluster.wait_saved(saved + BLOCKS)
    assert ranks.ask(text, first) == (cold[0], BLOCKS * BLOCK)  # its own hit
    restored = ranks.cluster.counters()["blocks_restored_vault"]
    assert ranks.ask(text, 1 - first) == (cold[0], BLOCKS * BLOCK)
    assert ranks.cluster.counters()["blocks_restored_vault"] == restored + BLOCKS


def test_each_rank_publishes_its_own_blocks_and_what_lies_in_the_vault(ranks: Ranks) -> None:
    text = prompt(985, BLOCKS * BLOCK + 3)

    def both_heard() -> bool:
        for rank in RANKS:
            ranks.ask(text, rank)  # vLLM publishes with a step
        ranks.hear()
        return all(len(each["own"]) >= BLOCKS and each["storage"] for each in ranks.heard)

    wait_until(both_heard, "both ranks' events")
    assert [each["ranks"] for each in ranks.heard] == [{0}, {1}]


def test_ranks_name_the_endpoint_from_which_a_gateway_finds_all_of_them(ranks: Ranks) -> None:
    engines = ranks.cluster.status()["engines"]
    assert {each["id"].rpartition("_")[2] for each in engines} == {"dp0", "dp1"}
    # Servers list the publishers of their ranks from 0.31 on; before, a rank's endpoint would stand for all.
    named = "" if MAIN == OLDEST else f"tcp://*:{ranks.port}"
    assert {each["events"] for each in engines} == {named}


@pytest.mark.skipif(MAIN == OLDEST, reason="its server does not list the publishers of ranks")
def test_a_gateway_sends_a_prompt_to_the_rank_that_holds_it(ranks: Ranks, folder: Path) -> None:
    # It knows the sidecar only: of that the engine's address and its first rank's events.
    place = folder / "gateway-of-ranks"
    place.mkdir()
    gateway = Gateway(place, f'[sidecar]\nsocket = "{ranks.cluster.socket}"\n')
    name = f"127.0.0.1:{ranks.server.port}"

    def own_hits(rank: int) -> float:
        return ranks.server.metric("vllm:prefix_cache_hits_total", f'engine="{rank}"')

    def heard() -> tuple[int, int, str]:
        found = json.loads(gateway.command("status", "--json"))["engines"]
        if not found:  # the sidecar has not been asked yet
            return 0, 0, ""
        (engine,) = found
        return engine["blocks"], engine["ranks"], engine["events"]

    def has_blocks(least: int) -> bool:
        return heard()[0] >= least

    def has_hit(rank: int, least: float) -> bool:
        return own_hits(rank) >= least

    try:
        wait_until(lambda: heard()[1:] == (len(RANKS), "live"), "both ranks are heard")
        texts = [prompt(990 + rank, BLOCKS * BLOCK + 3) for rank in RANKS]
        for rank, text in enumerate(texts):
            before = heard()[0]
            ranks.ask(text, rank)
            wait_until(partial(has_blocks, before + BLOCKS), f"rank {rank} is heard")
        restored = ranks.cluster.counters()["blocks_restored_vault"]
        for rank in (*RANKS, *RANKS):
            before_hits = [own_hits(each) for each in RANKS]
            told = gateway.complete(ranks.server.model, texts[rank])
            assert told == (name, BLOCKS * BLOCK, BLOCKS * BLOCK)
            least = before_hits[rank] + BLOCKS * BLOCK
            wait_until(partial(has_hit, rank, least), f"rank {rank} has a hit")
            assert own_hits(1 - rank) == before_hits[1 - rank]
        assert ranks.cluster.counters()["blocks_restored_vault"] == restored
    finally:
        gateway.process.end()
