"""Fetch plans of the scheduler side: the look-ups it sent and the blocks placed so far."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tierkv.connectors.vllm.link.counters import Durations
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import named_blocks, request_text
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.answers import Given
from tierkv.connectors.vllm.requests.plan_group import PlanGroup, needed_blocks


@dataclass
class Plan:
    """One `prefetch` of one request. `boundary`: prompt tokens up to which it is fetched; None before the look-up.

    With `is_plain` any placed prefix can be used, else only all of it. `taken_tokens`: tokens vLLM admitted, after
    `taken_from`; `asked_at_s`: vLLM's first query for it; `why`: why nothing is restored, if known;
    `is_from_vault`: at least one placed block was not in the arena before; `loaded_at_s`: set where slots are kept
    beyond the load, for block `checked`, which the engine computes itself (truth.py); `is_handed_over`: another engine
    is saving it, and the sidecar waits for that before `held`; `compute_ms`: what computing the tokens up
    to the boundary would take, if known; `load_us`: time of its copies; `is_asked`: the sidecar knows that vLLM waits
    for it; `is_begun`: vLLM gave its request blocks; `given`: its request's sums; `hashes`: its prompt's block hashes,
    of which those of `asked_tokens` tokens are looked up; `opened_at_s`: when the look-up was requested; `holders`:
    requests that may still be offered its blocks; `loads`: admissions whose load is under way; `is_loadable`: vLLM may
    be told of all tokens up to the boundary before they are placed; `is_kept`: it is, and the plan goes on;
    `is_held_back`: not this time, because a block is to be checked; `windows`: in how many parts it passes the arena;
    `is_alone`: vLLM had no other request when it took the offer; `took_s`: from the look-up to the load's end, if so;
    `left_for`: why the engine went on without what came, in a sidecar's word.
    """

    plan_id: int
    req_id: str
    groups: dict[int, PlanGroup]
    shards: int
    connection: int
    progress_at_s: float
    is_plain: bool = True
    arena: int = -1
    boundary: int | None = None
    done_reason: str | None = None
    why: str = ""
    is_begun: bool = False
    taken_tokens: int = 0
    taken_from: int = 0
    left_for: str = ""
    asked_at_s: float = 0.0
    is_from_vault: bool = False
    loaded_at_s: float = 0.0
    checked: int = -1
    is_handed_over: bool = False
    compute_ms: int | None = None
    load_us: int = 0
    is_alone: bool = False
    took_s: float = 0.0
    is_asked: bool = False
    hashes: Sequence[bytes] = ()
    asked_tokens: int = 0
    opened_at_s: float = 0.0
    holders: set[str] = field(default_factory=set)
    loads: int = 0
    is_loadable: bool = False
    is_kept: bool = False
    is_held_back: bool = False
    windows: int = 1
    given: Given = field(default_factory=Given)
    #: Frames about it so far; counted once a frame's effect is visible.
    news: int = 0

    @property
    def is_looked_up(self) -> bool:
        return all(part.held is not None for part in self.groups.values())

    @property
    def first_tokens(self) -> int:
        """Prompt tokens before the first requested block."""
        return min(part.first * part.group.block_tokens for part in self.groups.values())

    @property
    def is_done(self) -> bool:
        """Tell whether nothing more will be placed."""
        if self.done_reason is not None:
            return True
        return all(part.end >= part.count for part in self.groups.values())

    def place(self, group: int, first: int, slots: list[int], arena: int, local: int = 0) -> bool:
        """Append blocks, `local` of which came from no vault; False when they do not follow those already placed."""
        part = self.groups.get(group)
        if part is None or len(slots) % self.shards or self.arena not in (-1, arena):
            return False
        if not part.place(first, slots, local, is_plain=self.is_plain):
            return False
        self.arena = arena
        self.is_from_vault |= local * self.shards < len(slots)
        return True

    @property
    def is_coming(self) -> bool:
        """Tell whether vLLM may be told of blocks that are still coming."""
        is_open = self.arena >= 0 and self.done_reason is None
        return self.is_loadable and is_open and not self.is_held_back

    def placed_from(self, start: int) -> int:
        """Count the tokens after the first `start` that are placed; for models of one group."""
        (part,) = self.groups.values()
        return max(0, part.end * part.group.block_tokens - start)

    def ready_from(self, start: int) -> int:
        """Count the tokens after the first `start` that can be restored now; 0 when `start` lies outside the plan."""
        if start < self.first_tokens:
            return 0
        if self.is_plain:
            if self.is_coming and self.boundary is not None:
                return max(0, self.boundary - start)
            return self.placed_from(start)
        if self.boundary is None or self.boundary <= start:
            return 0
        is_whole = all(
            part.placed and part.begin <= needed[0] and needed[-1] < part.end
            for part in self.groups.values()
            if (needed := needed_blocks(part.group, start, self.boundary))
        )
        return self.boundary - start if is_whole else 0

    def blocks_from(
        self, start: int, tokens: int, tables: Sequence[Sequence[int]]
    ) -> list[tuple[int, list[int], list[int]]]:
        """Give what fills the `tokens` tokens after the first `start`: (group, block ids, slots, `shards` per block).

        `tables` holds the request's block ids, one table per KV-cache group of the engine. Every block vLLM allocated
        for those tokens must be among the placed ones, and none that a boundary needs may be absent: raises
        LoadMismatchError otherwise, because vLLM would take an unfilled page for computed.
        """
        return [
            (index, *part.blocks(start, start + tokens, tables[index]))
            for index, part in self.groups.items()
        ]

    def missing(self, group: int, first: int, end: int) -> Sequence[int]:
        """Give those of the blocks `first` to `end` that were not reported as held."""
        part = self.groups.get(group)
        return range(first, end) if part is None else part.missing(first, end)


class PlanBook:
    """All live plans of this engine, by request. The helper thread reports progress; the engine's thread decides.

    Only the engine's thread opens, shares, admits and releases, so an offer that vLLM is admitting cannot vanish.
    Requests of the same prompt share a plan: one look-up, one set of slots. It ends with the last of them.
    """

    def __init__(self, send: Callable[[Frame], bool], shards: int) -> None:
        self._send = send
        self._shards = shards
        self._lock = threading.Lock()
        self._plans: dict[str, Plan] = {}
        self._by_id: dict[int, Plan] = {}
        #: Plans whose slots the sidecar wants back, for `release_wanted`.
        self.wanted_back: set[int] = set()
        self._next_id = 1
        #: The sidecar's number of the arena that plans are placed in; -1 before there is one.
        self.arena = -1
        #: Requests' waits for their blocks, by the farthest place a block came from (`host`, `vault`).
        self.restore_times = Durations()
        self.connection = 0
        self.restore_on = False
        #: Least tokens worth a look-up: fewer are computed sooner.
        self.tokens_min = 1

    # --- the helper thread -------------------------------------------------------------------

    def opened(self) -> None:
        """Begin a new connection, which does not know the plans of an older one."""
        with self._lock:
            self.connection += 1
            self.restore_on = False
            self.tokens_min = 1

    def closed(self) -> None:
        """Forget all plans that were not admitted, because the connection ended."""
        with self._lock:
            self.restore_on = False
            for plan in self._by_id.values():
                plan.holders.clear()
                plan.done_reason = plan.done_reason or "closed"
            self._plans.clear()
            self._by_id.clear()
            self.wanted_back.clear()

    def on_frame(self, frame: Frame) -> None:
        """Apply the sidecar's frame to its plan; frames about ended plans are ignored."""
        kind = frame["t"]
        if kind == "pace":
            self.tokens_min = max(1, int(frame["tokens_min"]))
            return
        if kind == "restore":
            self.restore_on = bool(frame["on"])
            self.arena = int(frame["arena"])
            return
        with self._lock:
            plan = self._by_id.get(frame.get("plan", 0))
            if plan is None:
                return
            plan.progress_at_s = time.monotonic()
            if kind == "held":
                _take_held(plan, frame)
            elif kind == "placed" and plan.done_reason is None:  # later slots are nobody's
                slots = list(memoryview(frame["slots"]).cast("I"))
                local = int(frame.get("local", 0))
                if not plan.place(frame["group"], frame["first"], slots, self.arena, local):
                    plan.done_reason = "out_of_order"
            elif kind == "load":
                plan.is_loadable = True
            elif kind == "done":
                plan.why = str(frame.get("why", ""))
                plan.done_reason = str(frame["reason"])
            elif kind == "reclaim":
                self.wanted_back.add(plan.plan_id)
            plan.news += 1

    # --- the engine's thread -------------------------------------------------------------------

    def open(
        self,
        req_id: str,
        asked: Iterable[tuple[Group, Sequence[bytes]]],
        first_tokens: int,
        beside: Frame | None = None,
    ) -> Plan | None:
        """Ask the sidecar to look up each group's hashes and to fetch what follows the first `first_tokens` tokens.

        `beside`: fields of the frame that few requests need. None without a sidecar, and while too many look-ups
        wait to be sent.
        """
        self.release(req_id)
        now = time.monotonic()
        wanted = [(group, hashes, first_tokens // group.block_tokens) for group, hashes in asked]
        parts = {
            g.index: PlanGroup(g, first, len(hashes), self._shards) for g, hashes, first in wanted
        }
        with self._lock:
            plan = Plan(
                plan_id=self._next_id,
                req_id=req_id,
                groups=parts,
                shards=self._shards,
                connection=self.connection,
                progress_at_s=now,
                is_plain=len(parts) == 1 and wanted[0][0].tail == 0,
                is_handed_over="handoff" in (beside or {}),
                asked_tokens=max(len(of) * g.block_tokens for g, of, _ in wanted),
                opened_at_s=now,
                holders={req_id},
            )
            self._next_id += 1
            self._plans[req_id] = plan
            self._by_id[plan.plan_id] = plan
        frame: Frame = {
            "t": "prefetch",
            "req": request_text(req_id),
            "plan": plan.plan_id,
            "groups": [named_blocks(*of) for of in wanted],
            **(beside or {}),
        }
        if self._send(frame):
            return plan
        self._forget(plan)
        return None

    def share(self, req_id: str, plan: Plan) -> None:
        """Let another request be offered a plan's blocks, too."""
        self.release(req_id)
        with self._lock:
            plan.holders.add(req_id)
            self._plans[req_id] = plan

    def part(self, plan: Plan) -> None:
        """Take a plan from every request that holds it: the engine has its blocks now, or they are lost."""
        self._forget(plan)

    def keep(self, plan: Plan) -> None:
        """Offer a plan that vLLM admits now to no other request, and go on hearing of it: its slots return as it loads.

        Call it before `admit`, so that no frame about it is missed.
        """
        plan.is_kept = True
        self._forget(plan)

    def tell_loaded(self, plan: Plan, tokens: int) -> bool:
        """Return the slots of the blocks before `tokens` prompt tokens; False while the frame cannot be sent."""
        if plan.connection != self.connection:
            return True
        return self._send(
            {
                "t": "loaded",
                "req": request_text(plan.req_id),
                "plan": plan.plan_id,
                "tokens": tokens,
            }
        )

    def get(self, req_id: str) -> Plan | None:
        """Give the plan of a request that was not admitted yet."""
        return self._plans.get(req_id)  # a single read needs no lock

    def ask(self, plan: Plan) -> None:
        """Notify the sidecar that vLLM has room for the request: from now on the plan has a deadline and priority."""
        if not plan.is_asked:
            plan.is_asked = True
            self._send({"t": "asked", "req": request_text(plan.req_id), "plan": plan.plan_id})

    def admit(self, req_id: str, plan: Plan) -> None:
        """Take a request's plan out of the book: vLLM gave blocks for it, its slots stay until `release_plan`."""
        plan.is_begun = True
        plan.loads += 1
        self._leave(req_id, plan)

    def release(self, req_id: str, *, is_begun: bool = False) -> None:
        """End the plan of a request that was not admitted; its slots return. `is_begun`: vLLM gave it blocks."""
        plan = self.get(req_id)
        if plan is not None:
            plan.is_begun |= is_begun
            self._leave(req_id, plan)
            self._end(plan)

    def release_plan(self, plan: Plan) -> None:
        """End one load of a plan; its slots return if no other request holds or loads them."""
        plan.loads -= 1
        now = plan.loaded_at_s or time.monotonic()
        if plan.taken_tokens and plan.asked_at_s:
            tier = "vault" if plan.is_from_vault else "host"
            self.restore_times.add(tier, now - plan.asked_at_s)
            plan.given.waited_s += now - plan.asked_at_s
            if plan.is_alone:
                plan.took_s = now - plan.opened_at_s
        self._end(plan)

    def _end(self, plan: Plan) -> None:
        """Give a plan's slots back once nobody needs them, unless its connection has ended."""
        if plan.holders or plan.loads > 0:
            return
        with self._lock:
            self._by_id.pop(plan.plan_id, None)
        if plan.connection != self.connection:
            return
        frame: Frame = {"t": "release", "req": request_text(plan.req_id), "plan": plan.plan_id}
        if plan.is_begun:
            frame["begun"] = 1
        if plan.taken_tokens:
            frame |= {"tokens": plan.taken_tokens, "from": plan.taken_from}
            frame["load_us"] = plan.load_us
            if plan.took_s:
                frame["took_us"] = int(plan.took_s * 1e6)
        elif plan.left_for:
            frame["why"] = plan.left_for
        self._send(frame)

    def release_wanted(self) -> int:
        """Release the plans the sidecar wants back; called when no offer is pending. Returns their number."""
        with self._lock:
            wanted = [self._by_id.get(plan_id) for plan_id in self.wanted_back]
            plans = [plan for plan in wanted if plan is not None and plan.loads == 0]
            self.wanted_back.clear()
        for plan in plans:
            plan.done_reason = "reclaimed"
            self._forget(plan)
            self._end(plan)
        return len(plans)

    def release_all(self) -> None:
        with self._lock:
            req_ids = list(self._plans)
        for req_id in req_ids:
            self.release(req_id)

    def _leave(self, req_id: str, plan: Plan) -> None:
        with self._lock:
            plan.holders.discard(req_id)
            if self._plans.get(req_id) is plan:
                del self._plans[req_id]
            if not plan.holders and not plan.is_kept:
                self._by_id.pop(plan.plan_id, None)

    def _forget(self, plan: Plan) -> None:
        """Take a plan from every request that holds it."""
        for req_id in list(plan.holders):
            self._leave(req_id, plan)

    def __len__(self) -> int:
        with self._lock:
            return len(self._plans)


def _take_held(plan: Plan, frame: Frame) -> None:
    bitmaps = {group["group"]: group["held"] for group in frame["groups"]}
    for index, part in plan.groups.items():
        # The sidecar looks up only the beginning of a prompt too long for it; the rest counts as not held.
        part.held = bitmaps.get(index, b"").ljust(part.count // 8 + 1, b"\0")
    plan.compute_ms = frame.get("compute_ms")
    plan.windows = max(1, int(frame.get("windows", 1)))
    plan.boundary = int(frame["tokens"])
