"""The check of truth: which blocks are computed again, what is compared, and what follows of a difference."""

import math
from collections.abc import Iterator

import pytest
import torch
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import StepMetadata, StepReceipts
from tierkv.connectors.vllm.pages.pages import make_pages
from tierkv.connectors.vllm.save.truth import likeness_db

from .support.engine import Request, make_group, make_state, step_output
from .support.scheduler import ARENA, NOTHING, Bench
from .support.sidecar import WELCOME, FakeSidecar

pytestmark = pytest.mark.usefixtures("engine_core_started")

TABLE = list(range(1, 12))


@pytest.fixture
def bench(socket_path: str) -> Iterator[Bench]:
    yield from opened(socket_path, 1)


def opened(socket_path: str, every: int, fidelity: int = 0) -> Iterator[Bench]:
    welcome = {**WELCOME, "verify_every": every}
    with (
        FakeSidecar(socket_path, welcome, fidelity) as sidecar,
        Bench(socket_path, sidecar) as made,
    ):
        yield made


def restore(bench: Bench, name: str = "r", number: int = 1) -> tuple[Request, int]:
    """A prompt of 41 tokens of which ten blocks are held, loaded as far as it is offered."""
    request = bench.new(Request(name, 41))
    bench.place(bench.prefetch(number), 0, *range(20, 30))
    tokens, _ = bench.answer(request)
    assert tokens is not None
    bench.admit(request, TABLE, tokens)
    (part,) = bench.step().loads
    assert len(part.block_ids) == tokens // 4
    bench.finish_load(name)
    request.num_computed_tokens = tokens
    return request, tokens


def compute(bench: Bench, request: Request) -> StepMetadata:
    return bench.step({request.request_id: 5}, r=TABLE)


def hear(bench: Bench, receipts: StepReceipts) -> None:
    output = step_output(set())
    output.kv_connector_worker_meta = receipts
    bench.shim.update_connector_output(output)


def report(bench: Bench, db: float, number: int = 1) -> None:
    hear(bench, StepReceipts(checks={number: db}))


def test_the_last_block_is_left_to_the_engine_and_its_slots_are_kept_for_the_comparison(
    bench: Bench,
) -> None:
    request, tokens = restore(bench)
    assert tokens == 36
    (item,) = compute(bench, request).checks
    assert (item.arena, item.group, item.block_id, item.slots) == (ARENA, 0, 10, [29])
    assert compute(bench, request).checks == []
    assert [frame for frame in bench.fake.frames if frame["t"] == "release"] == []
    report(bench, 60.0)
    assert bench.releases(1) == [bench.prefetch()["plan"]]
    assert bench.shim.counters.get("truth_checks") == 1
    assert bench.shim._naming.refused == ""


@pytest.mark.parametrize(
    ("fidelity", "db"), [(0, limits.TRUTH_DB_MIN), (1, limits.TRUTH_LOSSY_DB_MIN)]
)
def test_what_differs_ends_restoring_and_saving_and_is_told(
    socket_path: str, fidelity: int, db: float
) -> None:
    for bench in opened(socket_path, 1, fidelity):
        request, _ = restore(bench)
        compute(bench, request)
        report(bench, db - 0.1)
        assert bench.releases(1) == [bench.prefetch()["plan"]]
        assert "dB to what this engine computes" in bench.shim._naming.refused
        assert bench.shim.counters.get("truth_mismatches") == 1
        assert bench.ask(bench.new(Request("s", 41, seed="other"))) == NOTHING
        assert bench.step({"s": 41}, s=TABLE).saves == []
        bench.shim._naming.report()  # the helper thread may have told it already
        assert bench.shim._naming._told["naming"]["distrusted"] == 1


@pytest.mark.parametrize(
    ("fidelity", "db"), [(0, limits.TRUTH_DB_MIN), (1, limits.TRUTH_LOSSY_DB_MIN)]
)
def test_what_differs_by_rounding_alone_is_believed(
    socket_path: str, fidelity: int, db: float
) -> None:
    for bench in opened(socket_path, 1, fidelity):
        request, _ = restore(bench)
        compute(bench, request)
        report(bench, db)
        assert bench.shim._naming.refused == ""


def test_a_block_that_could_not_be_compared_says_nothing(bench: Bench) -> None:
    request, _ = restore(bench)
    compute(bench, request)
    report(bench, math.inf)
    assert bench.releases(1)
    assert bench.shim.counters.get("truth_checks") == 0
    assert bench.shim._naming.refused == ""


def test_of_sampled_restores_every_so_many_is_checked(socket_path: str) -> None:
    for bench in opened(socket_path, 3):
        found = []
        for number in range(1, 7):
            name = f"r{number}"
            request = bench.new(Request(name, 41, seed=name))
            bench.place(bench.prefetch(number), 0, *range(20, 30))
            tokens, _ = bench.answer(request)
            found.append(tokens)
            bench.admit(request, TABLE, tokens or 0)
            bench.step()
            bench.finish_load(name)
            bench.shim.request_finished(request)
        assert found == [40, 40, 36, 40, 40, 36]
        assert len(bench.releases(6)) == 6


@pytest.mark.parametrize(("drafts", "offered"), [("eagle3", 40), ("ngram", 36)])
def test_a_draft_models_layers_are_never_compared(
    socket_path: str, drafts: str, offered: int
) -> None:
    """Their last value in a block depends on the next token, which may be another one in another prompt."""
    welcome = {**WELCOME, "verify_every": 1}
    with (
        FakeSidecar(socket_path, welcome) as sidecar,
        Bench(socket_path, sidecar, drafts=drafts) as bench,
    ):
        assert restore(bench)[1] == offered


def test_nobody_waits_for_a_check_beside_another_request(bench: Bench) -> None:
    bench.new(Request("other", 41, seed="other"))
    request = bench.new(Request("r", 41))
    bench.place(bench.prefetch(2), 0, *range(20, 30))
    assert bench.answer(request) == (40, True)


def test_an_abort_between_load_and_comparison_gives_the_slots_back(bench: Bench) -> None:
    request, _ = restore(bench)
    bench.shim.request_finished(request)
    assert bench.releases(1) == [bench.prefetch()["plan"]]


def test_new_weights_are_not_compared_with_what_old_ones_left(bench: Bench) -> None:
    request, _ = restore(bench)
    compute(bench, request)
    hear(bench, StepReceipts(checks={1: 0.0}, changed_at=1))
    assert bench.shim.counters.get("truth_checks") == 0
    assert bench.shim._naming.verdict == ""


def test_the_worst_rank_decides() -> None:
    one, two = StepReceipts(checks={1: 60.0}), StepReceipts(checks={1: 3.0, 2: 50.0})
    assert one.aggregate(two).checks == {1: 3.0, 2: 50.0}
    assert not one.is_empty


def pages_and_slot(dtype: torch.dtype) -> tuple[object, torch.Tensor, dict[str, torch.Tensor]]:
    group = make_group(layers=3, heads=2, dims=(8, 8), dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    shape = (4, group.heads, group.block_tokens, 16)
    tensors = {
        name: torch.randn(shape, generator=generator).to(dtype) for name in group.layer_names
    }
    pages = make_pages(group, tensors, 4)
    slot = torch.zeros(group.block_bytes, dtype=torch.uint8)
    pages.copy(2, slot, to_slot=True)
    return pages, slot, tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_blocks_agree_others_do_not_and_one_wrong_layer_is_enough(
    dtype: torch.dtype,
) -> None:
    pages, slot, tensors = pages_and_slot(dtype)
    assert likeness_db(pages, 2, slot) == limits.TRUTH_DB_MAX  # type: ignore[arg-type]
    assert likeness_db(pages, 3, slot) < 5  # type: ignore[arg-type]
    keys = tensors["layer.1"][2, ..., :8]
    keys += keys * 0.01
    assert 35 < likeness_db(pages, 2, slot) < 45  # type: ignore[arg-type]
    keys.copy_(torch.zeros_like(keys))
    assert likeness_db(pages, 2, slot) < 0  # type: ignore[arg-type]
    keys[0, 0, 0] = math.nan
    assert likeness_db(pages, 2, slot) < 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("drift", "is_told"), [(1.1, False), (1.75, True)])
def test_f97_a_scale_that_drifted_by_more_than_half_ends_restoring(
    socket_path: str, drift: float, is_told: bool
) -> None:
    pages, slot, tensors = pages_and_slot(torch.float32)
    tensors["layer.2"][2, ..., 8:] /= drift
    db = likeness_db(pages, 2, slot)  # type: ignore[arg-type]
    for bench in opened(socket_path, 1, fidelity=3):
        request, _ = restore(bench)
        compute(bench, request)
        report(bench, db)
        assert bool(bench.shim._naming.refused) == is_told
        assert bench.shim.counters.get("truth_mismatches") == int(is_told)


def test_states_are_not_compared() -> None:
    state = make_state(index=0)
    memory = {"state.0": torch.zeros(4, 24, dtype=torch.uint8)}
    assert likeness_db(make_pages(state, memory, 4), 2, torch.zeros(24)) == math.inf
