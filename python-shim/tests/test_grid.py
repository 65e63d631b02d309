"""The grid: hashes of blocks of every size, boundaries every group can be restored to, and the engine's own hit."""

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import encode
from tierkv.connectors.vllm.pages.grid import Grid

from .support.engine import Pool, Request, make_group, make_state

FULL, STATE = make_group(), make_state()
WINDOW = make_group(index=2, tail=2)


def test_a_block_is_named_by_the_last_hash_of_its_tokens() -> None:
    grid = Grid([make_group(tokens=8)], 4)
    request = Request("r", 24)
    (group,) = grid.groups
    assert grid.hashes(request, group, 24) == request.block_hashes[1::2]
    assert grid.hashes(request, group, 8) == request.block_hashes[1:2]
    assert grid.block_hash(request, group, 2) == request.block_hashes[5]
    hashes = request.block_hashes
    assert grid.names(request, group, 2) == (hashes[5], hashes[3], hashes[1])
    assert grid.names(request, group, 0) == (hashes[1], bytes(32), hashes[1])


@pytest.mark.parametrize(
    ("tokens", "limit"), [(11, 0), (12, 0), (13, 12), (24, 12), (25, 24), (40, 36)]
)
def test_a_boundary_ends_a_block_in_every_group_below_the_prompts_end(
    tokens: int, limit: int
) -> None:
    grid = Grid([make_group(tokens=4), make_state(tokens=12)], 4)
    assert grid.step == 12
    assert grid.limit(Request("r", tokens)) == limit


def test_no_more_hashes_are_asked_for_than_one_frame_takes() -> None:
    grid = Grid([make_group(tokens=4), make_group(tokens=8, index=1)], 4)
    tokens = limits.PLAN_HASHES_MAX * 4
    request = Request("r", 1)
    request.num_tokens, request.block_hashes = tokens + 1, [bytes(32)] * (tokens // 4)
    limit = grid.limit(request)
    hashes = [hash_ for group in grid.groups for hash_ in grid.hashes(request, group, limit)]
    assert limits.PLAN_HASHES_MAX - 3 <= len(hashes) <= limits.PLAN_HASHES_MAX
    encode({"t": "prefetch", "req": "r" * 1000, "plan": 1, "groups": [b"".join(hashes)]})


def test_a_block_that_is_no_multiple_of_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="group 0: 6 tokens a block are no multiple of the 4"):
        Grid([make_group(tokens=6)], 4)


@pytest.mark.parametrize(
    ("full", "state", "window", "hit"),
    [
        ("11110", "00000", "11111", 0),
        ("11110", "01100", "11111", 12),
        ("11110", "01111", "01101", 12),
        ("01111", "11111", "11111", 0),
        ("11111", "11111", "11101", 12),
        ("11111", "10000", "10000", 4),
        ("11111", "11111", "11111", 20),
    ],
)
def test_the_engines_own_hit_is_the_deepest_boundary_it_holds_whole(
    full: str, state: str, window: str, hit: int
) -> None:
    grid = Grid([FULL, STATE, WINDOW], 4)
    request = Request("r", 21)
    held = {0: full, 1: state, 2: window}

    pool = Pool()
    for index, block_hash in enumerate(request.block_hashes):
        for group, blocks in held.items():
            if blocks[index] == "1":
                pool.cached_by_group[group, block_hash] = 1
    assert grid.own_hit(pool, request) == hit


def test_an_engine_without_groups_has_no_boundary() -> None:
    grid = Grid([], 16)
    assert (grid.groups, grid.step, grid.is_plain) == ((), 1, False)
