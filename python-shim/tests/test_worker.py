"""The worker side and a scripted sidecar: copies land where they must, credits and reports are exact, nothing waits."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lab.step_clock import clock_of
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import StepReceipts
from tierkv.connectors.vllm.engine import worker
from tierkv.connectors.vllm.engine.worker import WorkerShim
from tierkv.connectors.vllm.link.autostart import Autostart
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.connectors.vllm.pages.copies import CudaCopier

from .support.device import Device
from .support.engine import vllm_config
from .support.sidecar import FakeArena, FakeSidecar, pairs, wait_until
from .support.worker import BLOCKS, GROUP, HASHES, Rank


@pytest.fixture(autouse=True)
def quick_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)


@pytest.fixture
def bench(socket_path: str) -> Iterator[Rank]:
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as made:
        yield made


def test_the_first_word_is_what_the_engine_holds(bench: Rank) -> None:
    (register,) = bench.fake.expect("register")
    assert register["groups"] == [GROUP.registration()]
    assert (register["kv_blocks"], register["max_model_len"]) == (BLOCKS, 256)
    assert register["step_tokens"] == 128
    (hello,) = bench.fake.hellos
    assert (hello["role"], hello["rank"], hello["world"]) == ("worker", 0, 1)


@pytest.mark.parametrize(
    ("rank", "backend", "begun"),
    [(0, "uni", "sidecar, files"), (0, "mp", "sidecar, files"), (1, "mp", ""), (0, "ray", "")],
)
def test_a_first_rank_begins_what_takes_long_before_there_is_a_scheduler_side(
    socket_path: str, monkeypatch: pytest.MonkeyPatch, rank: int, backend: str, begun: str
) -> None:
    seen: list[str] = []
    looked = threading.Event()
    monkeypatch.setattr(Autostart, "attempt", lambda _: seen.append("sidecar"))
    monkeypatch.setattr(worker, "read_ahead", lambda _config, identity: seen.append(identity))
    monkeypatch.setattr(Channel, "_note_absence", lambda *_: looked.set())
    config = vllm_config(world=2, rank=rank)
    config.parallel_config.distributed_executor_backend = backend
    shim = WorkerShim(config, Settings(socket_path, "test", identity="files"), [GROUP], BLOCKS)
    shim._channel.start()
    assert looked.wait(10)
    shim.shutdown()
    assert ", ".join(sorted(set(seen), reverse=True)) == begun


def test_saved_blocks_lie_in_the_granted_slots(bench: Rank) -> None:
    arena = bench.give_arena()
    bench.give_credits((4, 9), (2, 7))
    assert bench.save(3, 5, ticket=11) == {11: 1}
    assert (arena.slot(4), arena.slot(2)) == (bench.page(3), bench.page(5))
    (frame,) = bench.fake.expect("save")
    assert frame["arena"] == 1
    assert frame["items"] == [
        [4, 9, 0, HASHES[3], HASHES[2], 12, 0, HASHES[3]],
        [2, 7, 0, HASHES[5], HASHES[4], 20, 0, HASHES[5]],
    ]
    assert bench.shim.status()["credits"] == 0


def test_put_off_saves_need_no_forward(bench: Rank) -> None:
    arena = bench.give_arena()
    bench.give_credits((4, 9))
    assert bench.save(3, ticket=2, has_forward=False) == {2: 1}
    assert arena.slot(4) == bench.page(3)
    assert len(bench.fake.expect("save")) == 1


def test_without_credits_the_rest_is_refused_counted_and_acknowledged(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1))
    bench.step(1, 2, 3, ticket=5)
    assert bench.shim.take_receipts() == StepReceipts(Counter({5: 1}), {5: 2}, slots=0)
    assert [len(frame["items"]) for frame in bench.fake.expect("save")] == [1]
    assert bench.shim.counters.get("saves_put_off") == 2
    bench.step(4, ticket=6)
    assert bench.shim.take_receipts() == StepReceipts(Counter({6: 1}), {6: 1}, slots=0)


def test_a_refusal_is_told_at_once_and_the_ticket_when_its_copies_have_ended(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1))
    device = Device()
    bench.shim._copier = CudaCopier(torch.device("cpu"), device)
    bench.step(1, 2, 3, ticket=5)
    assert bench.shim.take_receipts() == StepReceipts(Counter(), {5: 2}, slots=0)
    device.ends[0].has_passed = True
    bench.shim.take_finished()
    assert bench.shim.take_receipts() == StepReceipts(Counter({5: 1}))
    assert [len(frame["items"]) for frame in bench.fake.expect("save")] == [1]


def test_slots_are_told_when_their_number_changes(bench: Rank) -> None:
    assert bench.shim.take_receipts() is None
    bench.give_arena()
    bench.give_credits((0, 1), (1, 1))
    assert bench.shim.take_receipts() == StepReceipts(slots=2)
    assert bench.shim.take_receipts() is None


def test_slots_are_told_after_saves_though_as_many_came_back(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1), (1, 1))
    assert bench.shim.take_receipts() == StepReceipts(slots=2)
    bench.step(3, ticket=5)
    bench.give_credits((2, 1))
    assert bench.shim.take_receipts() == StepReceipts(Counter({5: 1}), slots=2)


def test_receipts_of_ranks_add_up_to_the_worst_of_them() -> None:
    first = StepReceipts(Counter({5: 1}), {5: 2}, slots=7)
    other = StepReceipts(Counter({5: 1, 6: 1}), {5: 1, 6: 3}, slots=4)
    assert first.aggregate(other) == StepReceipts(Counter({5: 2, 6: 1}), {5: 2, 6: 3}, slots=4)
    assert first.aggregate(StepReceipts()).slots == 7


def test_without_an_arena_saves_are_dropped_counted_and_acknowledged(bench: Rank) -> None:
    assert bench.save(1, 2, ticket=5) == {5: 1}
    assert bench.shim.counters.get("dropped_save_no_sidecar") == 2


def test_without_saves_there_is_nothing_to_acknowledge(bench: Rank) -> None:
    assert bench.save() == {}


def test_a_load_fills_exactly_its_blocks_and_is_reported_once(bench: Rank) -> None:
    arena = bench.give_arena()
    before = bench.memory.clone()
    pages = [bytes([n]) * GROUP.block_bytes for n in (1, 2)]
    arena.write(5, pages[0])
    arena.write(3, pages[1])
    bench.load([2, 7], [5, 3])
    assert [bench.page(2), bench.page(7)] == pages
    untouched = [0, 1, 3, 4, 5, 6]
    assert torch.equal(bench.memory[:, untouched], before[:, untouched])
    assert bench.shim.take_finished() == ({"r"}, set())
    assert bench.shim.take_finished() == (set(), set())


def test_a_load_in_parts_is_reported_with_the_last(bench: Rank) -> None:
    bench.give_arena()
    bench.load([2], [5], last=False)
    assert bench.shim.take_finished() == (set(), set())
    bench.load([3], [4])
    assert bench.shim.take_finished() == ({"r"}, set())


def test_the_same_request_is_reported_for_every_admission(bench: Rank) -> None:
    bench.give_arena()
    for _ in range(3):
        bench.load([2], [5])
        assert bench.shim.take_finished() == ({"r"}, set())


def test_each_rank_loads_its_own_slots(socket_path: str) -> None:
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar, world=2, rank=1) as bench:
        arena = bench.give_arena()
        for slot in range(4):
            arena.write(slot, bytes([slot]) * GROUP.block_bytes)
        bench.load([2, 3], [0, 1, 2, 3])
        assert (bench.page(2)[0], bench.page(3)[0]) == (1, 3)


@pytest.mark.parametrize(("rank", "shard"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_of_ranks_with_the_same_pages_the_first_saves_and_all_load_the_same_slot(
    rank: int, shard: int, socket_path: str
) -> None:
    with (
        FakeSidecar(socket_path) as sidecar,
        Rank(socket_path, sidecar, world=4, rank=rank, copies=2) as bench,
    ):
        arena = bench.give_arena()
        assert [hello["shards"] for hello in sidecar.hellos] == [2]
        bench.give_credits((4, 1))
        for slot in range(4):
            arena.write(slot, bytes([slot]) * GROUP.block_bytes)
        bench.load([2, 3], [0, 1, 2, 3])
        assert (bench.page(2)[0], bench.page(3)[0]) == (shard, 2 + shard)
        assert bench.save(1, ticket=9) == {9: 1}
        is_first = rank % 2 == 0
        assert bench.shim.counters.get("blocks_offered") == int(is_first)
        assert bench.shim.status()["credits"] == int(not is_first)


def test_f31_a_load_from_an_unknown_arena_fails_once_with_its_last_part(bench: Rank) -> None:
    bench.give_arena()
    before = bench.memory.clone()
    bench.load([2], [5], arena=9, last=False)
    assert bench.shim.take_finished() == (set(), set())
    bench.load([3], [4], arena=9)
    assert bench.shim.take_finished() == (set(), {"r"})
    assert torch.equal(bench.memory, before)
    bench.load([3], [4])  # its next admission is sound again
    assert bench.shim.take_finished() == ({"r"}, set())


def test_a_lost_connection_voids_credits_but_not_the_mapping(bench: Rank) -> None:
    arena = bench.give_arena()
    arena.write(5, b"\x01" * GROUP.block_bytes)
    bench.give_credits((0, 1), (1, 1))
    bench.fake.drop_connections()
    wait_until(lambda: not bench.shim.status()["arena"], "the end is noticed")
    assert bench.save(1) == {1: 1}
    assert arena.slot(0) == bytes(GROUP.block_bytes)
    bench.load([2], [5])
    assert bench.page(2) == b"\x01" * GROUP.block_bytes
    assert bench.shim.take_finished() == ({"r"}, set())


def test_after_a_reconnect_saves_go_to_the_new_arena(bench: Rank) -> None:
    old = bench.give_arena()
    bench.give_credits((0, 1))
    bench.fake.drop_connections()
    wait_until(lambda: not bench.shim.status()["arena"], "the end is noticed")
    new = bench.give_arena(2)
    bench.give_credits((3, 1), arena_id=2)
    bench.save(6)
    assert (new.slot(3), old.slot(0)) == (bench.page(6), bytes(GROUP.block_bytes))


def test_credits_of_another_arena_are_not_taken(bench: Rank) -> None:
    bench.give_arena()
    bench.fake.send({"t": "credits", "arena": 7, "slots": pairs((0, 1))})
    bench.give_credits((1, 1))
    assert bench.shim.status()["credits"] == 1


@pytest.mark.parametrize(
    "changes",
    [{"fd": None}, {"bytes": 1 << 40}, {"slot_count": 0}],
    ids=["without its descriptor", "short", "empty"],
)
def test_an_arena_that_cannot_be_mapped_is_counted_and_the_engine_runs_on(
    bench: Rank, changes: Frame
) -> None:
    bench.fake.expect("register")
    fake = FakeArena(GROUP.block_bytes, 2)
    bench.fake.send({**fake.frame(1), **changes})
    wait_until(lambda: bench.shim.counters.get("arena_map_failed"), "the failure is counted")
    (told,) = bench.fake.expect("unmapped")
    assert (told["arena"], "arena 1" in told["reason"]) == (1, True)
    assert bench.save(1) == {1: 1}
    fake.close()


def test_a_sidecar_that_stops_reading_costs_saves_not_time(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1), (1, 1), (2, 1))
    bench.fake.reads.clear()
    clock = clock_of(bench.shim)
    for block in range(1, 4):
        bench.save(block)
    for _ in range(200):
        bench.save(4)
        bench.shim.take_finished()
    assert clock.max_s < 0.1
    assert bench.shim.counters.get("saves_put_off") == 200


def test_the_time_of_copies_is_counted_apart(bench: Rank) -> None:
    bench.give_arena()
    bench.give_credits((0, 1))
    clock = clock_of(bench.shim)
    bench.save(1)
    bench.load([2], [0])
    assert clock.copy_bytes == 2 * GROUP.block_bytes
    assert clock.copy_s > 0
    assert len(clock.samples) == 4


def held_back(bench: Rank) -> list[Any]:
    """Prepare no arena; give what would say that one is ready."""
    waiting: list[Any] = []
    bench.shim._copier.prepare = lambda arena, ready: waiting.append(ready)  # type: ignore[method-assign]
    return waiting


def test_saves_wait_for_an_arena_that_is_being_prepared(bench: Rank) -> None:
    waiting = held_back(bench)
    bench.fake.expect("register")
    for arena_id in (1, 2):  # the second takes the first one's place
        bench.arenas.append(FakeArena(GROUP.block_bytes, 6))
        bench.fake.send(bench.arenas[-1].frame(arena_id))
    wait_until(lambda: len(waiting) == 2, "both arenas")
    bench.step(3, 5, ticket=11)
    receipts = bench.shim.take_receipts()
    assert receipts is not None
    assert (receipts.refused, receipts.tickets, receipts.slots) == ({11: 2}, {11: 1}, 0)
    waiting[0]()
    waiting[1]()
    (mapped,) = bench.fake.expect("mapped")
    assert mapped["arena"] == 2
    bench.give_credits((4, 9), arena_id=2)
    assert bench.save(3, ticket=12) == {12: 1}
    assert bench.arenas[1].slot(4) == bench.page(3)


def test_an_arena_of_a_sidecar_that_has_gone_meanwhile_is_not_used(bench: Rank) -> None:
    waiting = held_back(bench)
    bench.fake.expect("register")
    bench.arenas.append(FakeArena(GROUP.block_bytes, 6))
    bench.fake.send(bench.arenas[0].frame(1))
    wait_until(lambda: len(waiting) == 1, "the arena")
    bench.shim.on_close()
    waiting[0]()
    assert bench.shim.status() == {"credits": 0, "arena": False}
