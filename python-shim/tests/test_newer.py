"""What vLLM 0.33 and data-parallel engines do at the connector's border: offers cut, loads put off, one name."""

import ast
import inspect
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lab.engine_probe import CONTRACT
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.resolved import resolve
from vllm.config import VllmConfig
from vllm.engine.protocol import EngineClient
from vllm.v1.engine import core

from .support.engine import Request
from .support.scheduler import ASK_AGAIN, Bench

pytestmark = pytest.mark.usefixtures("engine_core_started")

IDLE = {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
TABLE = list(range(1, 12))


def offered(bench: Bench) -> Request:
    """A request that was offered ten blocks."""
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(), 0, *range(100, 110))
    assert bench.answer(request) == (40, True)
    return request


@pytest.mark.parametrize("taken", [1, 4, 9])
def test_of_an_offer_that_was_cut_only_the_part_taken_is_loaded(bench: Bench, taken: int) -> None:
    request = offered(bench)
    bench.admit(request, TABLE, 4 * taken)
    (part,) = bench.step().loads
    assert (part.block_ids, part.slots) == (TABLE[:taken], list(range(100, 100 + taken)))
    bench.finish_load("r")
    request.num_computed_tokens = 4 * taken
    saves = bench.step({"r": 41 - 4 * taken}, r=TABLE).saves
    assert [item.block_id for item in saves] == TABLE[taken:10]  # computed, so offered to the vault
    bench.shim.request_finished(request)
    assert bench.shim.status()["plans"] == bench.shim.status()["loads"] == 0


def test_an_offer_cut_to_nothing_may_be_made_again(bench: Bench) -> None:
    request = offered(bench)
    bench.admit(request, TABLE, 0)
    assert bench.step().loads == []
    assert bench.releases(1) == [bench.prefetch()["plan"]]
    assert bench.ask(request) == ASK_AGAIN  # preempted, and back at the queue's head
    bench.place(bench.prefetch(2), 0, *range(10))
    assert bench.answer(request) == (40, True)
    bench.admit(request, TABLE, 40)
    (part,) = bench.step().loads
    assert part.slots == list(range(10))


def test_a_request_put_back_before_its_admission_keeps_its_offer(bench: Bench) -> None:
    request = offered(bench)
    for _ in range(5):  # there is no room for it
        bench.step()
        assert bench.ask(request) == (40, True)
    bench.admit(request, TABLE, 40)
    (part,) = bench.step().loads
    assert part.slots == list(range(100, 110))


def test_an_admission_steps_before_its_forward_is_loaded_once(bench: Bench) -> None:
    request = offered(bench)
    bench.admit(request, TABLE, 40)
    assert len(bench.step().loads) == 1
    for _ in range(3):  # vLLM puts the request off; its load goes on
        assert bench.step().loads == []
    bench.finish_load("r")
    bench.admit(request, TABLE, 0)  # vLLM allocates again before the forward
    assert bench.step({"r": 1}, r=TABLE).loads == []
    bench.shim.request_finished(request)
    assert bench.shim.status() == IDLE


def test_block_hashes_cover_no_token_behind_their_block() -> None:
    """With drafts 0.33 lets hashes look ahead, but not beside a connector; ours asks for plain ones by default."""
    seen = json.loads(CONTRACT.read_text())["seen"]["0.33.0"]
    (hasher,) = [line for line in seen if "get_request_block_hasher" in line]
    assert "num_hash_lookahead_tokens=0)" in hasher
    (call,) = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(compat.block_hashes)))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "get_request_block_hasher"
    ]
    assert (len(call.args), call.keywords) == (2, [])


# --- data parallel -------------------------------------------------------------------------------


def test_data_parallel_ranks_share_a_name_and_differ_in_their_engine_id() -> None:
    config = VllmConfig()
    alone = resolve(config)
    assert (alone.refused, "parallel_config" in alone.parts) == ("", True)
    found = []
    for rank in range(2):
        of_rank = config.parallel_config = replace(config.parallel_config)
        of_rank.data_parallel_size, of_rank.data_parallel_rank = 2, rank
        of_rank.data_parallel_index = of_rank.data_parallel_rank_local = rank
        found.append(resolve(config))
    assert found[0] == found[1] == alone
    # Each rank has a scheduler of its own, which vLLM names apart.
    assert "_dp{" in inspect.getsource(core)


def test_ranks_name_the_first_ones_endpoint_of_events_where_their_server_lists_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = SimpleNamespace(
        enable_kv_cache_events=True, endpoint="tcp://*:5557", replay_endpoint=None
    )
    told = {"events": "tcp://*:5557"}

    def named(ranks: int, engine_id: str, *, is_split: bool = False) -> dict[str, str]:
        parallel = SimpleNamespace(
            data_parallel_size=ranks,
            data_parallel_external_lb=is_split,
            data_parallel_hybrid_lb=False,
        )
        transfer = SimpleNamespace(engine_id=engine_id)
        return compat.event_endpoints(
            SimpleNamespace(
                kv_events_config=events, parallel_config=parallel, kv_transfer_config=transfer
            )
        )

    # Ranks of models without experts are told that they are alone.
    for has_list in (hasattr(EngineClient, "get_kv_event_sources"), False):
        assert named(1, "e") == told
        assert named(2, "e_dp1") == named(1, "e_dp0") == (told if has_list else {})
        assert named(1, "e_dp0", is_split=True) == {}
        monkeypatch.delattr(EngineClient, "get_kv_event_sources", raising=False)
