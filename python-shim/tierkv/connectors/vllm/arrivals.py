"""Owns the loads of one rank from their first part to their report: each admission is reported exactly once."""

from collections.abc import Sequence

from tierkv.connectors.vllm import compat
from tierkv.connectors.vllm.guard import CannotRecomputeError
from tierkv.connectors.vllm.metadata import LoadPart


class Arrivals:
    """`groups`: how many the engine has; before 0.30 vLLM hears of lost blocks of a single one only."""

    def __init__(self, groups: int) -> None:
        self._is_single = groups == 1
        #: Blocks given so far, by request, of admissions that are not reported.
        self._loading: dict[str, list[int]] = {}
        #: Those whose last part was given.
        self._given: set[str] = set()
        #: Those of which a part failed and more are to come.
        self._broken: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        #: Handed over in this step; whether vLLM got them is known with the next one.
        self._taken: tuple[set[str], set[str]] = (set(), set())
        self._taken_blocks: set[int] = set()
        self.is_unconfirmed = False

    @property
    def can_fail(self) -> bool:
        """Tell whether vLLM can be told that blocks are lost."""
        return compat.fails_requests() or self._is_single

    @property
    def has_news(self) -> bool:
        """Tell whether `take` has something to give."""
        return bool(self._received or self._failed)

    def is_broken(self, req_id: str) -> bool:
        return req_id in self._broken

    def begin(self, part: LoadPart) -> None:
        self._loading.setdefault(part.req_id, []).extend(part.block_ids)
        if part.last:
            self._given.add(part.req_id)

    def receive(self, req_id: str) -> None:
        """Hear that an admission is copied whole; one that was reported as failed meanwhile stays so."""
        if self._loading.pop(req_id, None) is not None:
            self._given.discard(req_id)
            self._received.add(req_id)

    def fail(self, part: LoadPart) -> None:
        """Report a part that cannot be copied: its request as failed, with its last part.

        CannotRecomputeError where vLLM cannot be told: before 0.30 pages nobody filled would be used by a model of
        several groups.
        """
        self._lose(part.req_id, part.block_ids)
        self._received.discard(part.req_id)
        if part.last:
            self._end(part.req_id)
        else:
            self._broken.add(part.req_id)

    def fail_all(self) -> None:
        """Report every admission that is not copied whole as failed, or as soon as its last part is given."""
        for req_id, block_ids in list(self._loading.items()):
            self._lose(req_id, block_ids)
            if req_id in self._given:
                self._end(req_id)
            else:
                self._broken.add(req_id)

    def _end(self, req_id: str) -> None:
        self._loading.pop(req_id, None)
        self._given.discard(req_id)
        self._broken.discard(req_id)
        self._failed.add(req_id)

    def _lose(self, req_id: str, block_ids: Sequence[int]) -> None:
        if compat.fails_requests():
            return
        if not self._is_single:
            raise CannotRecomputeError(
                f"tierKV: the blocks of request {req_id} cannot be restored, and vLLM {compat.vllm_version()} "
                "cannot recompute them for a model with several KV-cache groups; use vllm>=0.30"
            )
        self._failed_blocks.update(block_ids)

    def take(self) -> tuple[set[str], set[str]]:
        """Give the ids received since the last call, and those that failed."""
        if not self.has_news:
            return set(), set()
        received, failed = self._received - self._failed, self._failed
        self._received, self._failed = set(), set()
        self._taken = received, failed
        self.is_unconfirmed = True
        return received, failed

    def take_failed_blocks(self) -> set[int]:
        """Give the ids of blocks whose load failed since the last call, for releases before 0.30."""
        if not self._failed_blocks:
            return set()
        self.is_unconfirmed = True
        self._taken_blocks, self._failed_blocks = self._failed_blocks, set()
        return self._taken_blocks

    def take_again(self) -> tuple[set[str], set[str]]:
        """Give the same as `take` where the step's call failed after it took them."""
        received, failed = self._taken
        self._received |= received
        self._failed |= failed
        again = self.take()
        self._taken = set(), set()
        return again

    def take_blocks_again(self) -> set[int]:
        again = self._taken_blocks | self._failed_blocks
        self._taken_blocks, self._failed_blocks = set(), set()
        return again

    def confirm(self) -> None:
        """Hear that the next step begins: what was taken has arrived."""
        self._taken = set(), set()
        self._taken_blocks = set()
        self.is_unconfirmed = False
