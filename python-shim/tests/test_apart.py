"""Equal tokens that are not the same prompt: vLLM's own hashes keep images and salts apart, and ours are those."""

from typing import Any

import pytest
from tierkv.connectors.vllm.pages.grid import Grid
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from .support.engine import make_group

BLOCK = 4
TOKENS = 24
#: Image tokens are placeholders, the same for every image.
IMAGE_AT, IMAGE_TOKENS = 9, 5
FIRST_WITH_IMAGE = IMAGE_AT // BLOCK


def image(identifier: str, offset: int = IMAGE_AT) -> MultiModalFeatureSpec:
    place = PlaceholderRange(offset=offset, length=IMAGE_TOKENS)
    return MultiModalFeatureSpec(None, "image", identifier, place)


def hashes(**what: Any) -> list[bytes]:
    """What the shim looks up, and saves under, for one prompt of the same tokens."""
    init_none_hash(sha256_cbor)
    request = Request(
        request_id="r",
        prompt_token_ids=list(range(TOKENS)),
        sampling_params=SamplingParams(),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK, sha256_cbor),
        **what,
    )
    grid = Grid([make_group(tokens=BLOCK)], BLOCK)
    (group,) = grid.groups
    return list(grid.hashes(request, group, TOKENS))


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({}, {}, TOKENS // BLOCK),
        ({"mm_features": [image("cat")]}, {"mm_features": [image("cat")]}, TOKENS // BLOCK),
        ({"mm_features": [image("cat")]}, {"mm_features": [image("dog")]}, FIRST_WITH_IMAGE),
        ({"mm_features": [image("cat")]}, {}, FIRST_WITH_IMAGE),
        ({"mm_features": [image("cat")]}, {"mm_features": [image("cat", 13)]}, FIRST_WITH_IMAGE),
        ({"cache_salt": "a"}, {"cache_salt": "b"}, 0),
        ({"cache_salt": "a"}, {}, 0),
    ],
)
def test_blocks_are_shared_up_to_the_first_that_differs(
    one: dict[str, Any], other: dict[str, Any], shared: int
) -> None:
    ours, theirs = hashes(**one), hashes(**other)
    assert len(ours) == len(theirs) == TOKENS // BLOCK
    assert ours[:shared] == theirs[:shared]
    assert not set(ours[shared:]) & set(theirs[shared:])
