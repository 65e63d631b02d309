"""Owns the loads of one rank from their first part to their report: each admission is reported exactly once."""

from collections.abc import Sequence

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import LoadPart
from tierkv.connectors.vllm.link.guard import CannotRecomputeError


class Arrivals:
    """`groups`: the engine's KV-cache groups; before 0.30 only an engine with one can report lost blocks."""

    def __init__(self, groups: int) -> None:
        self._is_single = groups == 1
        #: Block ids given so far, by request, of admissions not yet reported.
        self._loading: dict[str, list[int]] = {}
        #: Parts that are being copied, by request.
        self._open: dict[str, int] = {}
        #: Requests whose last part was given, and whether that part failed: reported once no part is being copied.
        self._given: dict[str, bool] = {}
        #: Requests with a failed part and more parts to come.
        self._broken: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        #: Ids (received, failed) handed over in this step; the next step confirms that vLLM got them.
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
        """Note a part whose copies begin; `copied` follows."""
        self._loading.setdefault(part.req_id, []).extend(part.block_ids)
        self._open[part.req_id] = self._open.get(part.req_id, 0) + 1
        if part.last:
            self._given[part.req_id] = False

    def copied(self, req_id: str) -> None:
        """Note that the copies of one part have ended, unless its admission was reported as failed meanwhile."""
        if req_id in self._open:
            self._open[req_id] -= 1
            self._report(req_id)

    def cut(self, part: LoadPart) -> None:
        """End an admission with blocks that will not come, from 0.30 on; earlier parts count, if none of them failed.

        vLLM computes from the first of the blocks on (v1/core/sched/scheduler.py, `_handle_invalid_blocks`).
        """
        self._loading.setdefault(part.req_id, [])
        self._failed_blocks.update(part.block_ids)
        self._given[part.req_id] = False
        self._report(part.req_id)

    def fail(self, part: LoadPart) -> None:
        """Record a part that cannot be copied; its request is reported as failed with the last part.

        Raises CannotRecomputeError before 0.30 with several groups, because vLLM would use the unfilled pages.
        """
        self._lose(part.req_id, part.block_ids)
        self._received.discard(part.req_id)
        if part.last:
            self._given[part.req_id] = True
            self._report(part.req_id)
        else:
            self._broken.add(part.req_id)

    def break_open(self) -> None:
        """Note that the pages of open admissions are lost, though more parts come: they will be reported as failed."""
        self._broken.update(req_id for req_id in self._loading if req_id not in self._given)

    def fail_all(self) -> None:
        """Report every unfinished admission as failed, now or once its last part is given."""
        for req_id, block_ids in list(self._loading.items()):
            self._lose(req_id, block_ids)
            self._open.pop(req_id, None)
            if req_id in self._given:
                self._given[req_id] = True
                self._report(req_id)
            else:
                self._broken.add(req_id)

    def _report(self, req_id: str) -> None:
        """Report an admission whose last part was given, once none of its parts is being copied.

        Before, vLLM would give a block to another request while it is still written.
        """
        if self._open.get(req_id, 0) > 0 or req_id not in self._given:
            return
        has_failed = self._given.pop(req_id)
        self._loading.pop(req_id, None)
        self._open.pop(req_id, None)
        self._broken.discard(req_id)
        (self._failed if has_failed else self._received).add(req_id)

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
        """Give the last `take` again, with what came since, because the call that took it failed."""
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
        """Confirm, as the next step begins, that vLLM got what was taken."""
        self._taken = set(), set()
        self._taken_blocks = set()
        self.is_unconfirmed = False
