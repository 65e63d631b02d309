"""Fetch plans as the scheduler side sees them: what was asked of the sidecar and what has been placed so far."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tierkv.connectors.vllm.frames import Frame


@dataclass
class Plan:
    """One `prefetch` of one request. Indices count the group's blocks from the prompt's start.

    `first`: the first block fetched; `count`: blocks looked up in all (0..count); `placed`: slots, `world` per block,
    of blocks `first`, `first + 1`, ... without a hole.
    """

    plan_id: int
    req_id: str
    group: int
    first: int
    count: int
    world: int
    connection: int
    progress_at_s: float
    arena: int = -1
    held: bytes | None = None
    placed: list[int] = field(default_factory=list)
    done_reason: str | None = None
    admitted: bool = False

    @property
    def placed_blocks(self) -> int:
        """Count the blocks that lie verified in the arena."""
        return len(self.placed) // self.world

    @property
    def is_done(self) -> bool:
        """Tell whether nothing more will be placed."""
        return self.done_reason is not None or self.first + self.placed_blocks >= self.count

    def place(self, first: int, slots: list[int], arena: int) -> bool:
        """Append blocks; False when they do not follow the ones already placed."""
        if first != self.first + self.placed_blocks or len(slots) % self.world:
            return False
        if self.arena not in (-1, arena):
            return False
        self.arena = arena
        self.placed.extend(slots)
        return True

    def ready_from(self, start: int) -> int:
        """Count the placed blocks that follow `start` without a hole; 0 when `start` lies outside."""
        if start < self.first:
            return 0
        return max(0, self.first + self.placed_blocks - start)

    def slots_from(self, start: int, blocks: int) -> list[int]:
        """Give the slots of `blocks` blocks from `start`, `world` per block."""
        offset = (start - self.first) * self.world
        return self.placed[offset : offset + blocks * self.world]

    def holds(self, index: int) -> bool:
        """Tell whether the sidecar or the vaults were reported to hold block `index` on all shards."""
        return (
            self.held is not None
            and index < self.count
            and bool(self.held[index // 8] >> (index % 8) & 1)
        )


class PlanBook:
    """All live plans of this engine, by request. The helper thread reports progress; the engine's thread decides.

    Only the engine's thread opens, admits and releases, so an offer vLLM is about to admit cannot be taken away.
    """

    def __init__(self, send: Callable[[Frame], bool], world: int) -> None:
        self._send = send
        self._world = world
        self._lock = threading.Lock()
        self._plans: dict[str, Plan] = {}
        self._by_id: dict[int, Plan] = {}
        self._wanted_back: set[int] = set()
        self._next_id = 1
        self._arena = -1
        self.connection = 0
        self.restore_on = False

    # --- the helper thread -------------------------------------------------------------------

    def opened(self) -> None:
        """Hear of a new connection: plans of an older one are unknown to it."""
        with self._lock:
            self.connection += 1
            self.restore_on = False

    def closed(self) -> None:
        """Hear that the connection ended: what was not admitted is forgotten."""
        with self._lock:
            self.restore_on = False
            self._plans.clear()
            self._by_id.clear()
            self._wanted_back.clear()

    def on_frame(self, frame: Frame) -> None:
        """Record what the sidecar says about a plan; frames about plans that are over are ignored."""
        kind = frame["t"]
        if kind == "restore":
            self.restore_on = bool(frame["on"])
            self._arena = int(frame["arena"])
            return
        with self._lock:
            plan = self._by_id.get(frame.get("plan", 0))
            if plan is None:
                return
            plan.progress_at_s = time.monotonic()
            if kind == "held":
                plan.held = next(
                    (g["held"] for g in frame["groups"] if g["group"] == plan.group), b""
                )
            elif kind == "placed":
                slots = list(memoryview(frame["slots"]).cast("I"))
                if not plan.place(frame["first"], slots, self._arena):
                    plan.done_reason = "out_of_order"
            elif kind == "done":
                plan.done_reason = str(frame["reason"])
            elif kind == "reclaim":
                self._wanted_back.add(plan.plan_id)

    # --- the engine's thread -------------------------------------------------------------------

    def open(self, req_id: str, group: int, hashes: Sequence[bytes], first: int) -> Plan | None:
        """Ask the sidecar to look up `hashes` and to fetch those from `first` on; None without a sidecar."""
        self.release(req_id)
        now = time.monotonic()
        with self._lock:
            plan = Plan(
                plan_id=self._next_id,
                req_id=req_id,
                group=group,
                first=first,
                count=len(hashes),
                world=self._world,
                connection=self.connection,
                progress_at_s=now,
            )
            self._next_id += 1
            self._plans[req_id] = plan
            self._by_id[plan.plan_id] = plan
        wanted = {"group": group, "class": "kv", "hashes": b"".join(hashes), "from": first}
        if self._send({"t": "prefetch", "req": req_id, "plan": plan.plan_id, "groups": [wanted]}):
            return plan
        self._forget(plan)
        return None

    def get(self, req_id: str) -> Plan | None:
        """Give the plan of a request that was not admitted yet."""
        with self._lock:
            return self._plans.get(req_id)

    def admit(self, plan: Plan) -> None:
        """Take a plan out of the book: vLLM gave blocks for it, its slots stay until `release_plan`."""
        plan.admitted = True
        self._forget(plan)

    def release(self, req_id: str) -> None:
        """End the plan of a request that was not admitted; its slots return."""
        plan = self.get(req_id)
        if plan is not None:
            self._forget(plan)
            self.release_plan(plan)

    def release_plan(self, plan: Plan) -> None:
        """Give a plan's slots back, unless they went with the connection it belonged to."""
        if plan.connection == self.connection:
            self._send({"t": "release", "req": plan.req_id, "plan": plan.plan_id})

    def release_wanted(self) -> int:
        """Release the plans the sidecar asked back; called when no offer is pending. Returns how many."""
        with self._lock:
            plans = [
                self._by_id[plan_id] for plan_id in self._wanted_back if plan_id in self._by_id
            ]
            self._wanted_back.clear()
        for plan in plans:
            plan.done_reason = "reclaimed"
            self._forget(plan)
            self.release_plan(plan)
        return len(plans)

    def release_all(self) -> None:
        """End every plan that was not admitted."""
        with self._lock:
            req_ids = list(self._plans)
        for req_id in req_ids:
            self.release(req_id)

    def _forget(self, plan: Plan) -> None:
        with self._lock:
            self._by_id.pop(plan.plan_id, None)
            if self._plans.get(plan.req_id) is plan:
                del self._plans[plan.req_id]

    def __len__(self) -> int:
        with self._lock:
            return len(self._plans)
