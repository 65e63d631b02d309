"""Places a prompt's blocks and boundaries: block hashes by group, and the depth of the engine's own cache."""

import math
from collections.abc import Sequence
from typing import Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.pages.specs import Group

_NO_PARENT = bytes(32)


class Grid:
    """The groups of one engine over the block hashes of its requests; a hash covers `hash_tokens` tokens.

    A boundary is a place where every group ends a block: a multiple of `step` tokens.
    """

    def __init__(self, groups: Sequence[Group], hash_tokens: int) -> None:
        self.groups = tuple(groups)
        self.hash_tokens = hash_tokens
        self.step = math.lcm(*(group.block_tokens for group in groups))
        hashes_a_step = sum(self.step // group.block_tokens for group in groups)
        #: Tokens of a prompt that are never restored, so that the engine computes them.
        self.left_tokens = 1
        self._tokens_max = limits.PLAN_HASHES_MAX // max(1, hashes_a_step) * self.step
        for group in groups:
            if group.block_tokens % hash_tokens:
                raise ValueError(
                    f"KV-cache group {group.index}: {group.block_tokens} tokens a block are no multiple of the "
                    f"{hash_tokens} tokens of a block hash"
                )

    @property
    def is_plain(self) -> bool:
        """Tell whether any prefix of whole blocks can be restored: one group that needs all blocks before."""
        return len(self.groups) == 1 and self.groups[0].tail == 0

    def limit(self, request: Any) -> int:
        """Give the deepest boundary, in tokens, that may be restored; at least `left_tokens` tokens lie after it.

        At most `PLAN_HASHES_MAX` blocks of all groups are requested, because a look-up is one frame.
        """
        return min(self._whole(request), self._tokens_max)

    def beyond(self, request: Any) -> int:
        """Give the tokens after `limit` that a longer look-up could restore."""
        return self._whole(request) - self.limit(request)

    def hashed(self, request: Any) -> int:
        """Give how many tokens, answered ones included, have block hashes that one frame can name."""
        return min(len(request.block_hashes) * self.hash_tokens, self._tokens_max)

    def _whole(self, request: Any) -> int:
        hashed = len(request.block_hashes) * self.hash_tokens
        most = min(request.num_tokens - self.left_tokens, hashed)
        return max(0, int(most)) // self.step * self.step

    def block_hash(self, request: Any, group: Group, index: int) -> bytes:
        """Give the 32 bytes that name a group's block: the last hash of its tokens."""
        ratio = group.block_tokens // self.hash_tokens
        return bytes(request.block_hashes[(index + 1) * ratio - 1])

    def names(self, request: Any, group: Group, index: int) -> tuple[bytes, bytes, bytes]:
        """Give the hashes of a group's block, of the one before (zeros for the first) and of its run's first."""
        hashes, ratio = request.block_hashes, group.block_tokens // self.hash_tokens
        parent = hashes[index * ratio - 1] if index else _NO_PARENT
        first = index - index % limits.RUN_BLOCKS
        return hashes[(index + 1) * ratio - 1], parent, hashes[(first + 1) * ratio - 1]

    def hashes(self, request: Any, group: Group, tokens: int) -> Sequence[bytes]:
        """Give the hashes of a group's blocks in the first `tokens` tokens."""
        hashes: Sequence[bytes] = request.block_hashes
        ratio = group.block_tokens // self.hash_tokens
        return hashes[ratio - 1 : tokens // self.hash_tokens : ratio]

    def own_hit(self, pool: Any, request: Any) -> int:
        """Give the deepest boundary, in tokens, that the engine's block pool holds now; 0 before it is known."""
        if pool is None:
            return 0
        tokens = self.limit(request)
        for group in self.groups:
            if group.tail == 0:
                run = 0
                for block_hash in self.hashes(request, group, tokens):
                    if pool.get_cached_block(block_hash, [group.index]) is None:
                        break
                    run += 1
                tokens = run * group.block_tokens // self.step * self.step
        tails = [group for group in self.groups if group.tail]
        while tokens > 0 and not all(
            self._is_tail_cached(pool, request, group, tokens) for group in tails
        ):
            tokens -= self.step
        return tokens

    def _is_tail_cached(self, pool: Any, request: Any, group: Group, tokens: int) -> bool:
        end = tokens // group.block_tokens
        return all(
            pool.get_cached_block(self.block_hash(request, group, index), [group.index]) is not None
            for index in range(end - 1, max(0, end - group.tail) - 1, -1)
        )
