"""KV-cache events of the storage tier: claims follow what vaults say they hold, and nothing but that."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.engine.events import StorageEvents
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.naming.hello import hello_frame
from tierkv.connectors.vllm.pages.grid import Grid
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .support.engine import BLOCK_TOKENS, Request, make_group, make_state, vllm_config

GROUP = make_group()


def name(block_hash: bytes) -> Any:
    return maybe_convert_block_hash(block_hash)


class Bench:
    """The events of an engine, and vaults that hold what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_on: bool = True) -> None:
        self.name: tuple[str | int, ...] = ("tierkv",)
        monkeypatch.setattr(
            "tierkv.connectors.vllm.engine.events.spec_kinds", lambda _: {0: "full_attention"}
        )
        config = SimpleNamespace(kv_events_config=SimpleNamespace(enable_kv_cache_events=is_on))
        self.counters = Counters()
        grid = Grid([GROUP], BLOCK_TOKENS)
        self.events = StorageEvents(config, None, grid, self.counters, lambda: self.name)
        self.request = self.prompt("prompt")
        self.held: set[bytes] = set()

    @staticmethod
    def prompt(seed: str, tokens: int = 24) -> Any:
        request: Any = Request(seed, tokens, seed=seed)
        request.all_token_ids = list(range(100, 100 + tokens))
        return request

    @property
    def hashes(self) -> list[bytes]:
        return list(self.request.block_hashes)

    def ask(self) -> Sequence[Any]:
        """One second: a question, its answer, and what vLLM publishes of it."""
        frame = self.events.question()
        if frame is not None:
            groups: Any = frame["groups"]
            answers = [
                {"group": part["group"], "held": self._bits(part["hashes"])} for part in groups
            ]
            self.events.hear({"t": "audited", "n": frame["n"], "groups": answers})
        return self.events.take()

    def _bits(self, hashes: bytes) -> bytes:
        each = [hashes[at : at + 32] for at in range(0, len(hashes), 32)]
        bits = sum(1 << index for index, block_hash in enumerate(each) if block_hash in self.held)
        return bits.to_bytes(len(each) // 8 + 1, "little")

    def claim(self, *indices: int) -> None:
        self.events.saw(self.request, GROUP, indices)
        self.held |= {self.hashes[index] for index in indices}
        assert self.ask()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield Bench(monkeypatch)


def test_blocks_are_told_once_a_vault_holds_them_and_in_one_run(bench: Bench) -> None:
    bench.events.saw(bench.request, GROUP, range(3))
    assert bench.ask() == []
    bench.held = set(bench.hashes[1:3])
    (event,) = bench.ask()
    assert isinstance(event, BlockStored)
    assert event.block_hashes == [name(block_hash) for block_hash in bench.hashes[1:3]]
    assert event.parent_block_hash == name(bench.hashes[0])
    assert event.token_ids == list(range(104, 112))
    assert (event.block_size, event.group_idx) == (BLOCK_TOKENS, 0)
    assert (event.medium, event.locality, event.ownership) == ("STORAGE", "REMOTE", "tierkv")
    assert event.kv_cache_spec_kind == "full_attention"
    bench.held.add(bench.hashes[0])
    (first,) = bench.ask()
    assert (first.block_hashes, first.parent_block_hash) == ([name(bench.hashes[0])], None)
    assert bench.ask() == []
    assert not bench.events.has_news


def test_what_a_vault_lost_is_withdrawn_and_told_again_when_it_is_back(bench: Bench) -> None:
    bench.claim(0, 1)
    bench.held.discard(bench.hashes[1])
    (event,) = bench.ask()
    assert isinstance(event, BlockRemoved)
    assert event.block_hashes == [name(bench.hashes[1])]
    assert (event.medium, event.locality, event.ownership) == ("STORAGE", "REMOTE", "tierkv")
    assert bench.ask() == []
    bench.held.add(bench.hashes[1])
    (again,) = bench.ask()
    assert (type(again), again.block_hashes) == (BlockStored, event.block_hashes)


def test_all_is_withdrawn_when_the_sidecar_is_gone(bench: Bench) -> None:
    bench.claim(0, 1, 2)
    unanswered = bench.events.question()
    bench.events.lost()
    removed = bench.events.take()
    assert [type(event) for event in removed] == [BlockRemoved] * 3
    assert unanswered is not None
    late = {"t": "audited", "n": unanswered["n"], "groups": [{"group": 0, "held": b"\xff"}]}
    bench.events.hear(late)
    assert bench.events.take() == []
    (again,) = bench.ask()
    assert len(again.block_hashes) == 3


def test_one_question_is_open_at_a_time(bench: Bench) -> None:
    bench.events.saw(bench.request, GROUP, range(2))
    assert bench.events.question() is not None
    assert bench.events.question() is None


def test_what_no_vault_ever_holds_is_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDITS_UNHELD_MAX", 3)
    bench.events.saw(bench.request, GROUP, range(2))
    for _ in range(3):
        assert bench.ask() == []
    assert bench.events.question() is None


def test_more_blocks_than_it_may_keep_push_the_oldest_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_BLOCKS_MAX", 2)
    bench.claim(0, 1)
    bench.events.saw(bench.request, GROUP, (2, 3, 4))
    assert bench.counters.get("dropped_event_blocks") == 1
    bench.held = set(bench.hashes)
    kinds = [type(event) for event in bench.ask()]
    assert (kinds.count(BlockRemoved), BlockStored in kinds) == (2, True)


def test_blocks_whose_hashes_name_more_than_tokens_are_not_told(bench: Bench) -> None:
    salted = bench.prompt("salted")
    salted.cache_salt = "s"
    shown = bench.prompt("shown")
    shown.mm_features = [object()]
    for request in (salted, shown):
        bench.events.saw(request, GROUP, range(2))
    bench.events.saw(bench.request, make_state(), range(2))
    assert bench.events.question() is None


def test_an_engine_without_events_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, is_on=False)
    bench.events.saw(bench.request, GROUP, range(3))
    assert bench.events.question() is None
    assert not StorageEvents(vllm_config(), None, Grid([GROUP], BLOCK_TOKENS), Counters()).is_on


@pytest.mark.parametrize(
    ("role", "is_on", "ranks", "told"),
    [
        ("scheduler", True, 1, {"events": "tcp://*:5557"}),
        ("worker", True, 1, {}),
        ("scheduler", False, 1, {}),
        ("scheduler", True, 2, {}),
    ],
)
def test_a_scheduler_says_where_its_engine_publishes(
    role: Any, is_on: bool, ranks: int, told: dict[str, str]
) -> None:
    events = SimpleNamespace(
        enable_kv_cache_events=is_on, endpoint="tcp://*:5557", replay_endpoint=None
    )
    # Ranks behind several servers: no server lists them all.
    split = {"data_parallel_external_lb": ranks > 1, "data_parallel_hybrid_lb": False}
    parallel = SimpleNamespace(world_size=1, data_parallel_size=ranks, **split)
    transfer = SimpleNamespace(engine_id="engine-1", kv_role="kv_both")
    config: Any = SimpleNamespace(
        kv_events_config=events, parallel_config=parallel, kv_transfer_config=transfer
    )
    hello = hello_frame(config, role, 0, 1)
    assert {key: hello[key] for key in ("events", "replays") if key in hello} == told


def test_subscribers_are_told_the_name_of_blocks_in_vaults_at_once_again_and_when_it_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("tierkv.connectors.vllm.engine.events.time.monotonic", lambda: clock[0])
    name = ("tierkv", "ab" * 32, 2, "cd" * 32)
    assert bench.ask() == []
    bench.name = name
    (event,) = bench.ask()
    assert isinstance(event, BlockStored)
    assert (event.block_hashes, event.token_ids, event.parent_block_hash) == ([], [], None)
    assert (event.medium, event.block_size, event.group_idx) == ("STORAGE", BLOCK_TOKENS, 0)
    assert event.extra_keys == [name]
    hash(event)  # vLLM's aggregator does
    assert bench.ask() == []
    clock[0] += limits.EVENT_NAME_EVERY_S + 1
    assert [event.extra_keys for event in bench.ask()] == [[name]]
    clock[0] += limits.EVENT_NAME_EVERY_S + 1
    bench.events.saw(bench.request, GROUP, range(3))
    bench.held = set(bench.hashes)
    named, claimed = bench.ask()  # with other news it comes first
    assert (named.extra_keys, len(claimed.block_hashes)) == ([name], 3)
    bench.held = set()
    assert len(bench.ask()) == 3
    bench.events.lost()
    assert [event.extra_keys for event in bench.events.take()] == [[("tierkv",)]]
    assert bench.events.take() == []
    clock[0] += limits.EVENT_NAME_EVERY_S + 1
    assert bench.events.take() == []


def test_a_name_keeps_no_engine_stepping(bench: Bench) -> None:
    bench.name = ("tierkv", "ab" * 32, 1, "cd" * 32)
    assert bench.events.question() is None
    assert not bench.events.has_news
    assert len(bench.events.take()) == 1
