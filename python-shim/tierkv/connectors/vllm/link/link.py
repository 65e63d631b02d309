"""Owns both connections of an engine that reaches the sidecar from one process: mlx-lm, and vLLM's own offloading."""

import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.autostart import Autostart
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.mapping import map_arena
from tierkv.connectors.vllm.link.messages import hello, is_set, named_blocks
from tierkv.connectors.vllm.link.settings import Settings

log = logging.getLogger("tierkv.shim")

_PAIR: Final = struct.Struct("<II")
_SLOT: Final = struct.Struct("<I")


@dataclass(frozen=True)
class Asked:
    """One group of a look-up: hashes of its blocks in the order of the prompt."""

    index: int
    record_class: str
    hashes: Sequence[bytes]


@dataclass
class Plan:
    """The sidecar's answers to one look-up. `slots`: slot numbers by group and block index.

    `reason`: why the plan ended; empty until then. `late_s`: when an answer comes too late.
    """

    number: int
    req: str
    late_s: float
    held: dict[int, bytes] = field(default_factory=dict)
    tokens: int = 0
    slots: dict[int, dict[int, int]] = field(default_factory=dict)
    reason: str = ""
    is_asked: bool = False

    def is_held(self, group: int, index: int) -> bool:
        """Tell whether a vault or the sidecar holds a block."""
        return is_set(self.held.get(group, b""), index)


@dataclass(frozen=True)
class Slot:
    """A free slot that may be filled; its number means nothing in another arena."""

    arena: int
    number: int
    generation: int
    view: memoryview


@dataclass(frozen=True)
class Save:
    """One block in a slot that the engine has filled."""

    slot: Slot
    group: int
    block_hash: bytes
    parent: bytes
    end_tokens: int
    anchor: bytes

    def row(self) -> list[Any]:
        """Give the row of a `save` frame, without a tenant."""
        named = [self.group, self.block_hash, self.parent, self.end_tokens, 0, self.anchor]
        return [self.slot.number, self.slot.generation, *named]


@dataclass(frozen=True)
class _Side:
    """One connection's listener, which forwards to the link."""

    on_open: Callable[[Frame], None]
    on_frame: Callable[[Frame], None]
    on_close: Callable[[], None]


class Link:
    """`name` gives the namespace for a fidelity, empty while it is not known; `register` is the worker's frame.

    `engine`, `kind`: as in `hello`. `identity` gives the `weights` frame, None while it is not known. `reports` gives
    new fields for `counts` frames. `opened` is called for a sidecar that knows nothing yet, `decided` with its
    answer to `weights`.
    """

    def __init__(
        self,
        settings: Settings,
        software: str,
        register: Frame,
        *,
        engine: str,
        kind: str = "",
        counters: Counters | None = None,
        name: Callable[[int], tuple[bytes, dict[str, str]]],
        identity: Callable[[], Frame | None],
        reports: Callable[[], Frame],
        opened: Callable[[], None],
        decided: Callable[[Frame], None],
    ) -> None:
        self.counters = counters or Counters()
        self._register = register
        self._name = name
        self._reports = reports
        self._identity = identity
        self._opened = opened
        self._decided = decided
        self._changed = threading.Condition()
        self._fidelity: int | None = None
        self._wait_s = limits.WAIT_MS_DEFAULT / 1000
        self._connection = self._asked_on = self._named_on = 0
        self._identified = ""
        self._arena_id = 0
        self._slot_bytes = 0
        self._memory: mmap | None = None
        self._free: deque[tuple[int, int]] = deque()
        self._is_on = False
        self._plans: dict[int, Plan] = {}
        self._last_plan = 0
        self._autostart = Autostart(settings)
        self._scheduler = Channel(
            settings.socket,
            hello(engine, software, "scheduler", kind=kind),
            _Side(self._hear_welcome, self._hear, self._hear_close),
            self.counters.take_changes,
            self._autostart.attempt,
            reports=self._report,
        )
        side = _Side(self._describe, self._hear, self._hear_close)
        self._worker = Channel(
            settings.socket, hello(engine, software, "worker", kind=kind), side, dict
        )

    def start(self) -> None:
        """Connect in the background, and go on trying."""
        self._scheduler.start()
        self._worker.start()

    def close(self) -> None:
        self._scheduler.close()
        self._worker.close()

    # --- the helper threads ---------------------------------------------------------------------

    def _describe(self, _welcome: Frame) -> None:
        self._worker.send(self._register)

    def _hear_welcome(self, welcome: Frame) -> None:
        """Note a new connection, so that the engine names itself again."""
        self._autostart.served()
        self._opened()
        with self._changed:
            self._fidelity = None
            self._wait_s = welcome["wait_ms"] / 1000
            self._connection += 1
            self._changed.notify_all()
        self._ask()

    def _ask(self) -> None:
        """Ask for the fidelity once on each connection, as soon as the weights are known."""
        with self._changed:
            identity = None if self._asked_on == self._connection else self._identity()
            if identity is not None and self._scheduler.send(identity):
                self._asked_on, self._identified = self._connection, identity["weights"]

    def _hear(self, frame: Frame) -> None:
        """Take a frame of either connection. A `reclaim` of a pressed plan is ignored: it is read and ends soon."""
        kind = frame["t"]
        with self._changed:
            if kind == "fidelity" and frame.get("weights", self._identified) == self._identified:
                self._fidelity = frame["fidelity"]
            elif kind == "arena":
                self._map(frame)
            elif kind == "credits" and frame["arena"] == self._arena_id:
                self._free.extend(_PAIR.iter_unpack(frame["slots"]))
            elif kind == "restore":
                self._is_on = bool(frame["on"])
            elif kind in ("held", "placed", "done"):
                self._hear_of_plan(frame)
            elif kind == "reclaim":
                plan = self._plans.get(frame["plan"])
                if plan is not None and not plan.is_asked:
                    self._release(plan.number)
            self._changed.notify_all()
        if kind == "fidelity":
            self._decided(frame)

    def _hear_close(self) -> None:
        """Forget what a connection's end makes void; a plan under way is over."""
        with self._changed:
            self._is_on = False
            self._free.clear()
            for plan in self._plans.values():
                plan.reason = plan.reason or "closed"
                plan.slots.clear()
            self._changed.notify_all()

    def _report(self) -> Frame:
        """Give new fields of `counts`; sends the name as soon as it is known, even without look-ups."""
        self.name()
        return self._reports()

    def _map(self, frame: Frame) -> None:
        self._free.clear()
        self._memory = None
        arena, size, slot_bytes = frame["arena"], frame["bytes"], frame["slot_bytes"]
        try:
            self._memory = map_arena(arena, frame["fd"], size, slot_bytes, frame["slot_count"])
        except OSError as error:
            self.counters.add("arena_map_failed")
            log.warning("tierKV: %s; no block is saved or restored", error)
            self._worker.send({"t": "unmapped", "arena": arena, "reason": str(error)})
            return
        self._arena_id, self._slot_bytes = arena, slot_bytes
        self._worker.send({"t": "mapped", "arena": arena})

    def _hear_of_plan(self, frame: Frame) -> None:
        plan = self._plans.get(frame["plan"])
        if plan is None:
            return
        if frame["t"] == "held":
            plan.held = {group["group"]: bytes(group["held"]) for group in frame["groups"]}
            plan.tokens = frame["tokens"]
        elif frame["t"] == "placed":
            placed = plan.slots.setdefault(frame["group"], {})
            for at, (slot,) in enumerate(_SLOT.iter_unpack(frame["slots"])):
                placed[frame["first"] + at] = slot
        else:
            plan.reason = frame["reason"]

    # --- the engine's thread ---------------------------------------------------------------------

    def name(self) -> bytes:
        """Give the namespace that the sidecar knows; empty where there is none, or no sidecar."""
        self._ask()
        with self._changed:
            connection, fidelity = self._connection, self._fidelity
            named = self._named_on == connection
        digest, parts = (b"", {}) if fidelity is None else self._name(fidelity)
        if not connection or not digest or not self._scheduler.is_up:
            return b""
        if not named:
            frame = {"t": "namespace", "namespace": digest, "model": self._register["model"]}
            if not self._scheduler.send({**frame, "parts": parts}):
                return b""
            with self._changed:
                self._named_on = connection
        return digest

    def renew(self) -> None:
        """Name the engine anew, because its weights have changed; plans under way are over."""
        with self._changed:
            self._fidelity = None
            self._asked_on = self._named_on = 0
            for plan in list(self._plans.values()):
                self._release(plan.number)
            self._changed.notify_all()
        self._ask()

    def wait_until_on(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            if self.name():
                with self._changed:
                    if self._is_on:
                        return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait(min(left, limits.MLX_POLL_S))

    def begin(
        self, groups: Sequence[Asked], start: int = 0, req: str = "", *, is_waiting: bool = True
    ) -> Plan | None:
        """Request a look-up, and a fetch from index `start` on; None without a sidecar or a name.

        The caller ends every plan by `release`. `req`: the request's name, for people. `is_waiting`: whether a request
        waits already; else the caller says so by `press`, and the sidecar may take the plan's slots until then.
        """
        if not self.name():
            self.counters.add("misses_not_named")
            return None
        with self._changed:
            if not self._is_on:
                self.counters.add("misses_not_ready")
                return None
            self._last_plan += 1
            late_s = time.monotonic() + self._wait_s + limits.MLX_PLAN_MARGIN_S
            plan = Plan(self._last_plan, req or f"mlx-{self._last_plan}", late_s)
            self._plans[plan.number] = plan
        frame: Frame = {"t": "prefetch", "req": plan.req, "plan": plan.number}
        frame["groups"] = [named_blocks(asked, asked.hashes, start) for asked in groups]
        if not self._scheduler.send(frame):
            plan.reason = "closed"
        if is_waiting:
            self.press(plan)
        return plan

    def press(self, plan: Plan) -> None:
        """Tell the sidecar that a request waits for a plan, whose deadline begins now."""
        with self._changed:
            if plan.is_asked or plan.reason:
                return
            plan.is_asked = True
            plan.late_s = time.monotonic() + self._wait_s + limits.MLX_PLAN_MARGIN_S
        if not self._scheduler.send({"t": "asked", "req": plan.req, "plan": plan.number}):
            plan.reason = "closed"

    def wait(self, until: Callable[[], Any], patience_s: float) -> bool:
        """Wait until `until` holds, which is asked after each frame; False after `patience_s`."""
        with self._changed:
            return bool(self._changed.wait_for(until, patience_s))

    def suspect(self) -> None:
        """Treat the sidecar as hung until its next frame, because an answer is overdue."""
        self._scheduler.suspect()

    def ask(self, groups: Sequence[Asked]) -> Plan | None:
        """Begin a plan and wait for the sidecar's restore budget; None without an answer in time."""
        plan = self.begin(groups)
        if plan is None:
            return None
        with self._changed:
            if not self._changed.wait_for(lambda: plan.reason, plan.late_s - time.monotonic()):
                self._scheduler.suspect()
        if plan.reason and plan.reason != "closed":
            return plan
        self.counters.add("misses_no_answer")
        self.release(plan, 0, 0.0)
        return None

    def release(self, plan: Plan, tokens: int, load_s: float) -> None:
        """Give a plan's slots back, and report the tokens and time of the load."""
        with self._changed:
            self._release(plan.number, tokens, load_s)

    def _release(self, number: int, tokens: int = 0, load_s: float = 0.0) -> None:
        plan = self._plans.pop(number, None)
        if plan is None:
            return
        plan.slots.clear()
        plan.reason = plan.reason or "closed"
        frame: Frame = {"t": "release", "req": plan.req, "plan": number}
        if tokens:
            frame |= {"tokens": tokens, "load_us": int(load_s * 1e6)}
        self._scheduler.send(frame)

    def read(self, plan: Plan, group: int, indices: range) -> list[memoryview] | None:
        """Give the slots of a plan's blocks; None where one is not placed. They hold until the plan is released."""
        with self._changed:
            placed = plan.slots.get(group, {})
            memory = self._memory
            if memory is None or any(index not in placed for index in indices):
                return None
            return [self._view(memory, placed[index]) for index in indices]

    def take(self, patience_s: float) -> Slot | None:
        """Give a free slot, after `patience_s` at most; None where none came."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or not self._is_on, patience_s)
            if not self._free or self._memory is None:
                return None
            number, generation = self._free.popleft()
            return Slot(self._arena_id, number, generation, self._view(self._memory, number))

    def give_back(self, slot: Slot) -> None:
        pair = _PAIR.pack(slot.number, slot.generation)
        self._worker.send({"t": "return", "arena": slot.arena, "slots": pair})

    def save(self, name: bytes, saves: Sequence[Save]) -> None:
        """Hand filled slots over; the sidecar drops slots of an arena that is gone."""
        for arena in dict.fromkeys(save.slot.arena for save in saves):
            items = [save.row() for save in saves if save.slot.arena == arena]
            self._worker.send({"t": "save", "arena": arena, "namespace": name, "items": items})

    def _view(self, memory: mmap, slot: int) -> memoryview:
        start = slot * self._slot_bytes
        return memoryview(memory)[start : start + self._slot_bytes]
