"""Owns a request's session: priority of its saves, the `session` frame at its end, and ignored options."""

import logging
from collections.abc import Callable
from typing import Any

from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import named_blocks
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.requests import RequestState, tenant_of
from tierkv.connectors.vllm.requests.visits import Visits

log = logging.getLogger("tierkv.shim")


class Sessions:
    """Tells the sidecar which blocks belong to which conversation; an absent sidecar is not told."""

    def __init__(
        self,
        grid: Grid,
        naming: Naming,
        send: Callable[[Frame], bool],
        counters: Counters,
        visits: Visits,
    ) -> None:
        self._grid = grid
        self._naming = naming
        self._send = send
        self._counters = counters
        self._visits = visits

    def note(self, state: RequestState) -> None:
        """Note whether a request returns; count ignored options, and log the first."""
        wish = state.wish
        is_wanted = (wish.session != "" and not wish.is_released) or wish.tells
        state.cursor.returns = self._visits.goes_on(state.request) or is_wanted
        if wish.ignored and self._counters.add("wishes_ignored") == 1:
            log.warning(
                "tierKV: a request's kv_transfer_params has %s, which is ignored (docs/how-to/requests.md has the "
                "known keys and values); further such requests are only counted (shim_wishes_ignored)",
                ", ".join(repr(name) for name in wish.ignored),
            )

    def ended(self, state: RequestState) -> None:
        """Remember where a request ends, and name its blocks if it belongs to a session."""
        self._visits.ended(state.request, self._grid.hash_tokens)
        wish, request, digest = state.wish, state.request, self._naming.digest
        if not wish.session or not digest:
            return
        frame: Frame = {
            "t": "session",
            "session": wish.session,
            "keep_s": wish.keep_s,
            "release": int(wish.is_released),
            "namespace": digest,
            "tenant": tenant_of(request),
            "groups": [self._blocks(request, group) for group in self._grid.groups],
        }
        self._counters.add("sessions_told" if self._send(frame) else "sessions_untold")

    def _blocks(self, request: Any, group: Group) -> Frame:
        """Name a group's blocks; if a restore needs only its last ones, the session's start at the prompt's end.

        The next turn restores there: behind its answer, or where its prompt ended if the client has changed the answer.
        """
        hashes = self._grid.hashes(request, group, self._grid.hashed(request))
        first = request.num_prompt_tokens // group.block_tokens - group.tail if group.tail else 0
        return named_blocks(group, hashes, min(max(0, first), len(hashes)))
