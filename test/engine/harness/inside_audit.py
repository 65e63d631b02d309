"""Compares every loaded page with all pages that were ever copied out under its name."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from harness.engine_main import Host

Name = tuple[int, bytes]


class Audit:
    """Records pages as saved by (group, block hash), and checks each page that returns, from the engine's start on.

    A name has a set of digests, because a block may be computed more than once, with different rounding.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._saved: defaultdict[Name, set[str]] = defaultdict(set)
        self._awaited: dict[str, list[tuple[Name, int]]] = {}
        self.pages = 0
        self.strange = 0
        self._save = host.worker._save
        self._alloc = host.shim.update_state_after_alloc
        self._finish = host.shim._loads.finish
        host.worker._save = self._on_save
        host.shim.update_state_after_alloc = self._on_alloc
        host.shim._loads.finish = self._on_finish

    def unhook(self) -> None:
        self._host.worker._save = self._save
        self._host.shim.update_state_after_alloc = self._alloc
        self._host.shim._loads.finish = self._finish

    def _on_save(self, arena: Any, items: Any, granted: Any, ticket: int) -> None:
        for item in items:
            self._saved[item.group, item.block_hash].add(self._digest(item.group, item.block_id))
        self._save(arena, items, granted, ticket)

    def _on_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        state = self._host.shim._requests.get(request.request_id)
        start = state.offer[1] if state is not None and state.offer is not None else 0
        self._alloc(request, blocks, tokens)
        if tokens:
            self._awaited[request.request_id] = list(
                self._filled(request, blocks.get_block_ids(), start, start + tokens)
            )

    def _filled(self, request: Any, tables: Any, start: int, end: int) -> Any:
        """Returns the blocks between two positions that vLLM has given this request, with their names."""
        grid = self._host.shim._grid
        for group in grid.groups:
            table = tables[group.index]
            for index in range(start // group.block_tokens, end // group.block_tokens):
                if index < len(table) and table[index]:
                    yield (group.index, grid.block_hash(request, group, index)), table[index]

    def _on_finish(self, req_id: str) -> Any:
        for name, block_id in self._awaited.pop(req_id, []):
            self.pages += 1
            self.strange += self._digest(name[0], block_id) not in self._saved[name]
        return self._finish(req_id)

    def _digest(self, group: int, block_id: int) -> str:
        pages = self._host.worker._pages[group]
        content = torch.zeros(pages.group.block_bytes, dtype=torch.uint8)
        pages.copy(block_id, content, to_slot=True)
        return hashlib.sha256(content.numpy().data).hexdigest()
