"""How prompts of mlx-lm are cut and named: equal prefixes share, everything else never does."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tierkv.connectors.vllm import limits
from tierkv.mlx.chain import chunk_hashes

CHUNK = limits.MLX_CHUNK_TOKENS


def prompt(chunks: Sequence[int], rest: int = 0) -> list[int]:
    """Chunk number n is n, n, n, ..."""
    return [number for number in chunks for _ in range(CHUNK)] + [9] * rest


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.randoms())
def test_a_prompt_in_another_order_shares_what_stands_before_the_first_difference(
    chunks: list[int], chance: object
) -> None:
    other = list(chunks)
    chance.shuffle(other)  # type: ignore[attr-defined]
    equal = next((i for i, (a, b) in enumerate(zip(chunks, other, strict=True)) if a != b), None)
    ours, theirs = chunk_hashes(prompt(chunks)), chunk_hashes(prompt(other))
    same = [a == b for a, b in zip(ours, theirs, strict=True)]
    until = len(chunks) if equal is None else equal
    assert same == [True] * until + [False] * (len(chunks) - until)


def test_only_whole_chunks_have_names_and_each_takes_in_all_before_it() -> None:
    assert chunk_hashes(prompt([], CHUNK - 1)) == []
    assert len(chunk_hashes(prompt([1, 1, 1], CHUNK - 1))) == 3
    assert len(set(chunk_hashes(prompt([1, 1, 1])))) == 3


def test_two_pictures_in_the_same_place_never_share() -> None:
    tokens = prompt([1, 2, 3])
    plain = chunk_hashes(tokens)
    cat, dog = (chunk_hashes(tokens, [(CHUNK + 5, name)]) for name in ("cat", "dog"))
    elsewhere = chunk_hashes(tokens, [(CHUNK + 6, "cat")])
    for found in (cat, dog, elsewhere):
        assert found[0] == plain[0]
    assert len({found[at] for at in (1, 2) for found in (plain, cat, dog, elsewhere)}) == 8
    assert chunk_hashes(tokens, [(CHUNK + 5, "cat")]) == cat


def test_a_picture_that_is_named_by_its_address_has_no_name() -> None:
    tokens = prompt([1, 2, 3])
    tokens[CHUNK + 3] = -12345
    assert chunk_hashes(tokens) == chunk_hashes(prompt([1]))
