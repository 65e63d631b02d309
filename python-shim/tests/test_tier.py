"""The tier behind vLLM's own offloading, before a scripted sidecar: what a lost connection or an error costs."""

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.offloading.tier import TierKVTier
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.specs import Group
from vllm.v1.kv_offload.base import LookupResult, make_offload_key

from .support.engine import Request
from .support.sidecar import FakeArena, FakeSidecar, pairs, wait_until

ROW = 64
ARENA = 5
NAME = namespace.Namespace(b"n" * 32, {})


class Bench:
    """A tier whose primary tier has four rows, and the sidecar it speaks with."""

    def __init__(self, path: str) -> None:
        self.sidecar, self.arena = FakeSidecar(path), FakeArena(ROW, 4)
        self.rows = torch.zeros((4, ROW), dtype=torch.int8)
        spec = types.SimpleNamespace(kv_bytes_per_chunk=ROW)
        view = memoryview(self.rows.numpy())  # type: ignore[arg-type]
        self.tier = TierKVTier(spec, view, "TierKVTier", socket=path, autostart=False)
        naming: Any = types.SimpleNamespace(
            make=lambda: NAME,
            report=dict,
            identity=lambda: {"t": "weights", "weights": "w", "order": 0},
            open=lambda: None,
            hear=lambda _: None,
            awaits_fidelity=False,
            close=lambda: None,
        )
        chunk = Group(0, ("chunk",), 4, page_bytes=(ROW,))
        self.tier.begin({"t": "register", "model": "m"}, naming, Grid([chunk], 4), "e", "0")
        wait_until(lambda: len(self.sidecar.connections) == 2, "both halves are there")
        roles = [hello["role"] for hello in self.sidecar.hellos]
        # `send` takes the newest connection.
        if roles[-1] != "worker":
            self.sidecar.connections.reverse()
        self.sidecar.send(self.arena.frame(ARENA))
        self.sidecar.expect("mapped")
        self.sidecar.send({"t": "credits", "arena": ARENA, "slots": pairs((0, 0))})
        self.sidecar.connections.reverse()
        self.sidecar.send({"t": "restore", "arena": ARENA, "on": True})
        assert self.tier._link is not None
        assert self.tier._link.wait_until_on(10.0)
        self.request = Request("r", 13)
        self.context: Any = types.SimpleNamespace(req_id="r")
        self.keys = [make_offload_key(bytes(h), 0) for h in self.request.block_hashes[:3]]
        self.tier.hear_request(self.request)

    def job(self, number: int, keys: list[Any]) -> Any:
        rows = list(range(len(keys)))
        return types.SimpleNamespace(
            job_id=number, keys=keys, chunk_ids=rows, req_context=self.context
        )

    def place(self, count: int) -> None:
        """Has the request's chunks asked for, and places the first of them."""
        assert self.tier.lookup(self.keys[0], self.context) is LookupResult.RETRY
        (asked,) = self.sidecar.expect("prefetch")
        plan = {"req": asked["req"], "plan": asked["plan"]}
        slots = b"".join(number.to_bytes(4, "little") for number in range(count))
        placed = {"t": "placed", **plan, "group": 0, "first": 0, "slots": slots, "local": 0}
        self.sidecar.send(placed, {"t": "done", **plan, "reason": "late"})
        wait_until(lambda: self.ask(0) is not LookupResult.RETRY, "it is answered")

    def ask(self, index: int) -> LookupResult:
        return self.tier.lookup(self.keys[index], self.context)

    def finished(self) -> Any:
        wait_until(lambda: self.tier.results, "a job ends")
        (result,) = self.tier.get_finished_jobs()
        return result


@pytest.fixture
def bench(socket_path: str) -> Iterator[Bench]:
    found = Bench(socket_path)
    with found.sidecar:
        yield found
        found.tier.shutdown()


def test_what_was_placed_is_copied_and_its_slots_go_back(bench: Bench) -> None:
    bench.arena.write(0, bytes(range(ROW)))
    bench.place(2)
    found = [bench.ask(index) for index in range(3)]
    assert found == [LookupResult.HIT, LookupResult.HIT, LookupResult.MISS]
    bench.tier.submit_load(bench.job(1, bench.keys[:2]))
    assert bench.finished().success
    assert bench.rows[0].tolist() == list(range(ROW))
    assert bench.sidecar.expect("release")[0]["tokens"] == 8
    assert not bench.tier.has_pending_work()


def test_a_request_before_the_decision_on_fidelity_is_looked_up_after_it(bench: Bench) -> None:
    naming: Any = bench.tier._naming
    naming.make, naming.awaits_fidelity = (lambda: None), True
    assert [bench.ask(0) for _ in range(2)] == [LookupResult.RETRY] * 2
    naming.make, naming.awaits_fidelity = (lambda: NAME), False
    bench.place(2)
    assert bench.ask(1) is LookupResult.HIT
    assert "misses_not_named" not in bench.tier.counters.snapshot()


def test_slots_that_were_lost_while_they_were_read_fail_the_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.place(2)
    read = TierKVTier._read

    def losing(tier: TierKVTier, *arguments: Any) -> bool:
        is_read = read(tier, *arguments)
        bench.sidecar.drop_connections()
        wait_until(lambda: not arguments[0].slots, "the plan is over")
        return is_read

    monkeypatch.setattr(TierKVTier, "_read", losing)
    bench.tier.submit_load(bench.job(1, bench.keys[:1]))
    result = bench.finished()
    assert (result.success, result.successful_keys) == (False, None)
    assert bench.ask(0) is LookupResult.MISS


def test_without_a_slot_or_a_request_a_store_fails_and_is_counted(bench: Bench) -> None:
    bench.rows[0] = 7
    bench.tier.submit_store(bench.job(1, bench.keys[:2]))
    assert not bench.finished().success
    (saved,) = bench.sidecar.expect("save")
    assert [row[0] for row in saved["items"]] == [0]
    assert bench.arena.slot(0) == b"\x07" * ROW
    assert bench.tier.counters.get("dropped_save_no_slot") == 1
    bench.tier.on_request_finished(bench.context)
    bench.tier.submit_store(bench.job(2, bench.keys[:2]))
    assert not bench.finished().success
    assert bench.tier.counters.get("dropped_save_not_ready") == 2


def test_an_error_of_ours_is_a_miss_and_turns_the_tier_off(bench: Bench) -> None:
    bench.request.block_hashes = None  # type: ignore[assignment]
    assert bench.ask(0) is LookupResult.MISS
    assert bench.tier.failures.is_off
    bench.tier.submit_load(bench.job(3, bench.keys[:1]))
    assert not bench.finished().success
