"""Remembers earlier prompts: blocks computed once, and ends that a conversation may continue."""

from array import array
from typing import Any

from tierkv.connectors.vllm import limits


class Visits:
    """Tells which blocks are likely to be needed again, from this engine's requests; bounded, and may forget.

    Many requests may share a block, so it is worth saving from the second on. A request that continues an end is a
    conversation's next turn, and its new blocks are worth saving, too.
    """

    def __init__(self) -> None:
        self._marks = array("Q", bytes(8 * limits.SEEN_BLOCKS_MAX))
        self._ends: dict[bytes, None] = {}

    def again(self, group: int, block_hash: bytes) -> bool:
        """Tell whether a block was chosen before, and remember it."""
        mark = (int.from_bytes(block_hash[:8], "little") + group) & _MARK_MAX
        at = mark % limits.SEEN_BLOCKS_MAX
        if self._marks[at] == mark:
            return True
        self._marks[at] = mark
        return False

    def goes_on(self, request: Any) -> bool:
        """Tell whether a request continues an earlier one's end; True only for the first to do so."""
        if not self._ends:
            return False
        found = self._ends.keys() & request.block_hashes
        for end in found:
            del self._ends[end]
        return bool(found)

    def ended(self, request: Any, hash_tokens: int) -> None:
        """Remember a request's end, and its prompt's: a client may change the answer."""
        hashes = request.block_hashes
        for count in (request.num_prompt_tokens // hash_tokens, len(hashes)):
            if 0 < count <= len(hashes):
                self._ends[hashes[count - 1]] = None
        while len(self._ends) > limits.PROMPT_ENDS_MAX:
            del self._ends[next(iter(self._ends))]


_MARK_MAX = (1 << 64) - 1
