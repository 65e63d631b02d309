"""Owns the names that an engine with longer blocks gives a prompt, so that a consumer can request its hand-off.

Only a consumer does so: it saves nothing, so blocks computed in another size never get this engine's names.
"""

import hashlib
import logging
from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.requests.answers import Handoff

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("tierkv.shim")


def key_of(digest: bytes, last: bytes) -> str:
    """Give a hand-off's key: a digest of the namespace and of the chain of hashes up to its last block."""
    return hashlib.sha256(digest + last).hexdigest()[:32]


class LongerBlocks:
    """Names of this engine's prompts at engines that differ only in the length of blocks."""

    def __init__(self, config: "VllmConfig", grid: Grid, naming: Naming) -> None:
        self._algorithm = str(config.cache_config.prefix_caching_hash_algo)
        self._grid = grid
        self._naming = naming

    @property
    def own_tokens(self) -> int:
        """Give the tokens of this engine's blocks, if others may cut them; else 0."""
        grid = self._grid
        is_cut = grid.is_plain and not grid.groups[0].is_opaque and self._naming.has_canonical_pages
        return grid.hash_tokens if is_cut and grid.step == grid.hash_tokens else 0

    def of(self, request: Any, said: Handoff) -> Frame | None:
        """Give namespace, length and hashes of a hand-off's blocks; None where its key is another prompt's."""
        own, tokens = self.own_tokens, said.block_tokens
        is_multiple = own > 0 and own < tokens <= limits.LONGER_TOKENS_MAX and tokens % own == 0
        if not is_multiple or said.tokens % tokens:
            return None
        # One frame names both engines' blocks.
        named = self._grid.limit(request) // own + said.tokens // tokens
        if named > limits.PLAN_HASHES_MAX:
            return None
        try:
            hashes = compat.block_hashes(request, said.tokens, tokens, self._algorithm)
        except Exception:  # another hashing rule costs the hand-off, not the request
            log.exception("tierKV: the hashes of an engine with longer blocks are not known")
            return None
        changes = namespace.of_blocks(self._grid.groups, tokens)
        digest = self._naming.as_if(changes)
        if len(hashes) != said.tokens // tokens or key_of(digest, hashes[-1]) != said.key:
            return None
        return {"namespace": digest, "tokens": tokens, "hashes": b"".join(hashes)}
