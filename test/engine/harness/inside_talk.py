"""Asks one request after the other, and compares each with the most that could be found in caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.v1.request import Request

from harness.inside_ranks import Place, digests_of
from harness.inside_steps import finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.engine_main import Host

Json = dict[str, Any]
Name = tuple[int, bytes]


class _Ledger:
    """Blocks that the engine has computed or handed off, by group and hash, with each page as computed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._grid = host.shim._grid
        self._computed: set[Name] = set()
        self._handed: set[Name] = set()
        self._pages: dict[Name, set[str]] = {}
        offer_state = host.shim._saves.offer_state

        def noting(request: Any, group: int, block_id: int, end_tokens: int, holds: Any) -> None:
            if end_tokens % self._grid.step == 0:
                self._handed.add((group, self._hash_at(request, end_tokens)))
            offer_state(request, group, block_id, end_tokens, holds)

        host.shim._saves.offer_state = noting

    def request(self, tokens: list[int]) -> Any:
        hasher = self._host.core.request_block_hasher
        return Request("ledger", tokens, SamplingParams(), None, block_hasher=hasher)

    def _hash_at(self, request: Any, end_tokens: int) -> bytes:
        return bytes(request.block_hashes[end_tokens // self._grid.hash_tokens - 1])

    def _names(self, request: Any, group: Any, first: int, tokens: int) -> Iterator[Name]:
        """Returns a group's blocks from index `first` on, up to `tokens` tokens."""
        for index in range(first, tokens // group.block_tokens):
            yield group.index, self._hash_at(request, (index + 1) * group.block_tokens)

    def ideal(self, prompt: list[int]) -> int:
        """Returns the deepest boundary below the prompt's end up to which blocks are computed and states handed off."""
        request = self.request(prompt)
        tokens = self._grid.limit(request)
        while tokens > 0 and not all(
            self._has(request, group, tokens) for group in self._grid.groups
        ):
            tokens -= self._grid.step
        return max(0, int(tokens))

    def _has(self, request: Any, group: Any, tokens: int) -> bool:
        last = tokens // group.block_tokens
        first = max(0, last - group.tail) if group.tail else 0
        known = self._handed if group.is_state else self._computed
        return all(name in known for name in self._names(request, group, first, tokens))

    def note(self, tokens: list[int], computed: int, cached: int) -> int:
        """Enters a request's blocks; returns how many pages of its first `cached` tokens differ from computed ones."""
        request = self.request(tokens)
        strange = 0
        found = self._pages_now(request, computed)
        for group in self._grid.groups:
            for at, name in enumerate(self._names(request, group, 0, computed)):
                digest = found.get(name)
                is_old = (at + 1) * group.block_tokens <= cached
                # Pages of a window that were released before their request ended have no computed digest.
                if digest is not None and is_old and name in self._pages:
                    strange += digest not in self._pages[name]
                elif digest is not None:
                    self._pages.setdefault(name, set()).add(digest)
                if not group.is_state:
                    self._computed.add(name)
        return strange

    def _pages_now(self, request: Any, computed: int) -> dict[Name, str]:
        """Returns digests of the cached pages of a request's blocks."""
        pool = self._host.scheduler.kv_cache_manager.block_pool
        names, places = list[Name](), list[Place]()
        for group in self._grid.groups:
            for name in self._names(request, group, 0, computed):
                block = pool.get_cached_block(name[1], [group.index])
                if block is not None:
                    names.append(name)
                    places.append((list(group.layer_names), block[0].block_id))
        return dict(zip(names, digests_of(self._host, places), strict=True))


def talk(host: Host, prompt: list[int], max_tokens: int, abort_after: int | None = None) -> Json:
    """Runs one request, alone in the engine; with `abort_after` its client leaves after so many steps.

    Return its tokens, the cached ones, the most that could have been cached, and the pages that differ.
    """
    ledger = getattr(host, "ledger", None)
    if ledger is None:
        ledger = host.ledger = _Ledger(host)  # type: ignore[attr-defined]
    ideal = ledger.ideal(prompt)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True)
    engine = host.llm.llm_engine
    engine.add_request("talk", {"prompt_token_ids": prompt}, params)
    if abort_after is not None:
        for _ in range(abort_after):
            engine.step()
        engine.abort_request(["talk"])
        finish(host)
        return {"tokens": [], "cached": None, "ideal": ideal, "strange": 0}
    answer: Json = finish(host)["talk"]
    tokens = prompt + answer["tokens"]
    strange = ledger.note(tokens, len(tokens) - 1, answer["cached"])
    return {**answer, "ideal": ideal, "strange": strange}
