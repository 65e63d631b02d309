"""Owns the KV-cache events that tell this engine's subscribers which blocks a vault holds."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.distributed import kv_events
from vllm.v1 import kv_cache_interface
from vllm.v1.core import kv_cache_utils

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import is_set, named_blocks
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.plans import Plan

_Key = tuple[int, bytes]
_Name = tuple[str | int, ...]
#: A vault's place in events: a tier of tierKV, away from the publisher's machine.
_TIER: Final = {"medium": "STORAGE", "locality": "REMOTE", "ownership": "tierkv"}
#: Name in events while no vault can be reached, or this engine's blocks have no name yet.
_NAMELESS: Final[_Name] = ("tierkv",)


@dataclass(slots=True)
class _Block:
    """A block as an event describes it; `asks`: consecutive audits in which no vault held it."""

    group: Group
    block_hash: bytes
    parent: bytes | None
    tokens: list[int]
    asks: int = 0

    @property
    def key(self) -> _Key:
        return self.group.index, self.block_hash


@dataclass(slots=True)
class _Audit:
    """One `audit` frame, with its blocks in order."""

    number: int
    blocks: list[_Block] = field(default_factory=list)


class StorageEvents:
    """Claims blocks that vaults report as held, and withdraws them once they do not.

    Every second the sidecar is asked for some blocks: those just saved or restored, and claimed ones in turn. So a
    block that was evicted, flushed or lost with its vault is withdrawn, and a vault that does not answer counts as
    holding nothing. Off unless the engine publishes events; blocks named by more than tokens are not published.
    """

    def __init__(
        self,
        config: Any,
        kv_cache_config: Any,
        grid: Grid,
        counters: Counters,
        called: Callable[[], _Name] = lambda: _NAMELESS,
    ) -> None:
        """`called` gives the vaults' name for the engine's blocks; called on the engine's thread, at each step."""
        self.is_on = compat.publishes_events(config)
        #: Whether `take` has events to give.
        self.has_news = False
        self._called = called
        #: Name sent last, and when it is sent again, because a subscriber may have joined since.
        self._told = _NAMELESS
        self._tell_at = 0.0
        self._is_connected = False
        self._kinds = spec_kinds(kv_cache_config) if self.is_on else {}
        self._grid = grid
        self._counters = counters
        self._lock = threading.Lock()
        self._waiting: OrderedDict[_Key, _Block] = OrderedDict()
        self._claimed: OrderedDict[_Key, _Block] = OrderedDict()
        self._news: deque[tuple[bool, _Block]] = deque()
        self._audit: _Audit | None = None
        self._number = 0

    # --- the engine's thread -------------------------------------------------------------------

    def saw(self, request: Any, group: Group, indices: Iterable[int]) -> None:
        """Note blocks of a request that a vault may hold now or soon."""
        if not self.is_on or group.tail or group.is_state or _hashes_more(request):
            return
        size, grid = group.block_tokens, self._grid
        with self._lock:
            for index in indices:
                block_hash = grid.block_hash(request, group, index)
                if (group.index, block_hash) in self._claimed:
                    continue
                parent = grid.block_hash(request, group, index - 1) if index else None
                tokens = list(request.all_token_ids[index * size : (index + 1) * size])
                self._wait(_Block(group, block_hash, parent, tokens))

    def restored(self, request: Any, plan: Plan, end_tokens: int) -> None:
        """Note a restored beginning of a request, whose blocks vaults may hold."""
        for part in plan.groups.values() if self.is_on else ():
            self.saw(request, part.group, range(end_tokens // part.group.block_tokens))

    def _wait(self, block: _Block) -> None:
        self._waiting[block.key] = block
        if len(self._waiting) > limits.EVENT_BLOCKS_MAX:
            self._waiting.popitem(last=False)
            self._counters.add("dropped_event_blocks")

    def _naming(self) -> list[Any]:
        name = self._called() if self._is_connected else _NAMELESS
        now = time.monotonic()
        if name == self._told and (name == _NAMELESS or now < self._tell_at):
            return []
        self._told, self._tell_at = name, now + limits.EVENT_NAME_EVERY_S
        return [
            _stored_event(group, self._kinds.get(group.index), name=name)
            for group in self._grid.groups
            if not (group.tail or group.is_state)
        ]

    def take(self) -> list[Any]:
        """Give vLLM's events since the last call, in order; call it in each step."""
        naming = self._naming()
        if not self.has_news:
            return naming
        with self._lock:
            news = list(self._news)
            self._news.clear()
            self.has_news = False
        events: list[Any] = []
        run: list[_Block] = []
        for is_held, block in news:
            follows = bool(run) and is_held and block.parent == run[-1].block_hash
            if run and not (follows and block.group is run[-1].group):
                events.append(self._stored(run))
                run = []
            if is_held:
                run.append(block)
            else:
                events.append(_removed_event(block.block_hash, block.group))
        if run:
            events.append(self._stored(run))
        self._counters.add("storage_events", len(events))
        return naming + events

    def _stored(self, run: list[_Block]) -> Any:
        first = run[0]
        return _stored_event(
            first.group,
            self._kinds.get(first.group.index),
            [block.block_hash for block in run],
            first.parent,
            [token for block in run for token in block.tokens],
        )

    # --- the helper thread -------------------------------------------------------------------

    def question(self) -> Frame | None:
        """Give the next `audit` frame; None while one is open, or without any block."""
        self._is_connected = True
        with self._lock:
            if self._audit is not None or not (self._waiting or self._claimed):
                return None
            self._number += 1
            self._audit = _Audit(self._number)
            for table in (self._waiting, self._claimed):
                for _ in range(min(len(table), limits.AUDIT_BLOCKS_MAX // 2)):
                    key, block = table.popitem(last=False)
                    table[key] = block
                    self._audit.blocks.append(block)
            asked = {
                group: [block.block_hash for block in self._audit.blocks if block.group == group]
                for group in self._grid.groups
            }
        groups = [named_blocks(group, hashes, 0) for group, hashes in asked.items() if hashes]
        return {"t": "audit", "n": self._number, "groups": groups}

    def hear(self, frame: Frame) -> None:
        """Take the answer to the last `audit`; other frames are ignored."""
        if frame["t"] != "audited":
            return
        held = {part["group"]: part["held"] for part in frame["groups"]}
        with self._lock:
            audit = self._audit
            if audit is None or audit.number != frame["n"]:
                return
            self._audit = None
            place: dict[int, int] = {}
            for block in audit.blocks:
                index = place.get(block.group.index, 0)
                place[block.group.index] = index + 1
                self._judge(block, is_held=is_set(held.get(block.group.index, b""), index))

    def _judge(self, block: _Block, *, is_held: bool) -> None:
        is_waiting, is_claimed = block.key in self._waiting, block.key in self._claimed
        if is_held and is_waiting:  # a block in neither table was pushed out meanwhile
            del self._waiting[block.key]
            self._claimed[block.key] = block
            block.asks = 0
            self._tell(block, is_held=True)
            if len(self._claimed) > limits.EVENT_BLOCKS_MAX:
                _, oldest = self._claimed.popitem(last=False)
                self._tell(oldest, is_held=False)
        elif is_claimed and not is_held:
            self._withdraw(block)
        elif is_waiting:
            block.asks += 1
            if block.asks >= limits.AUDITS_UNHELD_MAX:
                del self._waiting[block.key]

    def _withdraw(self, block: _Block) -> None:
        """Withdraw a claim; the block is audited some more times, because a vault may be offered it again."""
        del self._claimed[block.key]
        block.asks = 0
        self._wait(block)
        self._tell(block, is_held=False)

    def _tell(self, block: _Block, *, is_held: bool) -> None:
        self._news.append((is_held, block))
        self.has_news = True

    def lost(self) -> None:
        """Withdraw all claims at the connection's end, because no vault can be reached without a sidecar."""
        self._is_connected = False
        with self._lock:
            self._audit = None
            for block in list(self._claimed.values()):
                self._withdraw(block)


def _hashes_more(request: Any) -> bool:
    """Tell whether a request's block hashes cover more than its tokens (a salt, pictures)."""
    return bool(request.cache_salt or request.mm_features)


def spec_kinds(kv_cache_config: Any) -> dict[int, str]:
    """Give vLLM's word for each group's kind of attention."""
    kind = kv_cache_interface.get_kv_cache_spec_kind
    groups = kv_cache_config.kv_cache_groups
    return {index: kind(group.kv_cache_spec).value for index, group in enumerate(groups)}


def _event(kind: Any, fields: dict[str, Any]) -> Any:
    known = kind.__struct_fields__  # `ownership` came with 0.30
    return kind(**{name: value for name, value in {**fields, **_TIER}.items() if name in known})


def _stored_event(
    group: Group,
    kind: str | None,
    hashes: Sequence[bytes] = (),
    parent: bytes | None = None,
    tokens: Sequence[int] = (),
    *,
    name: tuple[Any, ...] | None = None,
) -> Any:
    """Say that a vault holds blocks that follow each other; `kind`: vLLM's word for their attention.

    With a `name`, the event has no blocks and tells how vaults name this engine's: `tierkv`, then namespace, shards and
    root of the hashes; only `tierkv` where no vault can be reached.
    """
    outside = kv_cache_utils.maybe_convert_block_hash
    fields = {
        "block_hashes": [outside(block_hash) for block_hash in hashes],
        "parent_block_hash": None if parent is None else outside(parent),
        "token_ids": list(tokens),
        "block_size": group.block_tokens,
        "lora_id": None,
        "lora_name": None,
        "group_idx": group.index,
        "kv_cache_spec_kind": kind,
    }
    return _event(
        kv_events.BlockStored, fields if name is None else {**fields, "extra_keys": [name]}
    )


def _removed_event(block_hash: bytes, group: Group) -> Any:
    """Say that no vault holds a block any more."""
    outside = kv_cache_utils.maybe_convert_block_hash
    fields = {"block_hashes": [outside(block_hash)], "group_idx": group.index}
    return _event(kv_events.BlockRemoved, fields)
