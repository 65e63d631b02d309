"""Restores in windows by vLLM's own scheduler, with a fault in most of them; every page is checked before it is used.

Pages and slots hold names of blocks: a page that a step reads must hold the block of its place. Arguments: a model's
folder, the seed, the number of restores.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections import Counter
from typing import Any

from tests.support.sidecar import wait_until
from tierkv.connectors.vllm.api.metadata import Memory, StepReceipts
from tierkv.connectors.vllm.link.frames import Frame, encode
from vllm.v1.outputs import KVConnectorOutput

from harness.scheduling import BLOCK, Rig, Vault, tokens

#: Blocks in use at a time, and blocks placed with one frame at most.
DEPTH = 4
BLOCKS = 16
REQUESTS = 3
FAULTS = ("none", "vault_down", "bad_record", "slower", "flushed", "hang", "abort", "preempt")
LATE_SLOT = 1_000_000


class Passing:
    """One plan on its way through the arena: `hashes` from the first asked block on."""

    def __init__(
        self, frame: Frame, hashes: list[bytes], first: int, chance: random.Random
    ) -> None:
        self.named = {"req": frame["req"], "plan": frame["plan"]}
        self.hashes = hashes
        self.first = first
        self.placed = self.loaded = 0
        self.fault = chance.choice(FAULTS)
        #: Blocks placed when the fault comes.
        self.fault_at = chance.randrange(1, len(hashes) + 1)
        self.is_told = self.is_over = False


class WindowVault(Vault):
    """Places a few blocks at a time, in slots that it uses again as soon as they are said to be loaded."""

    def __init__(self, path: str, chance: random.Random) -> None:
        self.chance = chance
        self.passing: dict[int, Passing] = {}
        self.content: dict[int, bytes] = {}
        self.free = list(range(DEPTH * (REQUESTS + 1)))
        self.used: dict[int, list[int]] = {}
        self.taken = 0
        self.sent = 0
        self.wrong_frames: list[str] = []
        super().__init__(path)

    def _take(self, connection: Any, frame: Frame) -> None:
        super()._take(connection, frame)
        plan = self.passing.get(frame.get("plan", 0))
        if frame["t"] == "loaded" and plan is not None:
            count = frame["tokens"] // BLOCK - plan.first
            if not plan.loaded <= count <= plan.placed:
                self.wrong_frames.append(f"{frame} of {plan.placed} blocks")
            slots = self.used[frame["plan"]]
            for _ in range(count - plan.loaded):
                self._give_back(slots.pop(0))
            plan.loaded = count
        elif frame["t"] == "release" and plan is not None:
            plan.is_over = True
            for slot in self.used.pop(frame["plan"]):
                self._give_back(slot)
            del self.passing[frame["plan"]]
        if frame["t"] in ("prefetch", "loaded", "release", "asked"):
            self.taken += 1

    def _give_back(self, slot: int) -> None:
        self.content[slot] = b"another block's"
        self.free.append(slot)

    def _answer(self, frame: Frame) -> None:
        (group,) = frame["groups"]
        data, first = group["hashes"], group["from"]
        hashes = [data[at : at + 32] for at in range(0, len(data), 32)]
        count = self._held(hashes)
        of = {"req": frame["req"], "plan": frame["plan"]}
        bits = ((1 << count) - 1).to_bytes(len(hashes) // 8 + 1, "little")
        held = [{"group": 0, "held": bits}]
        self.tell({"t": "held", **of, "groups": held, "tokens": max(count, first) * BLOCK})
        if count <= first:
            self.tell({"t": "done", **of, "reason": "end_of_hit"})
            return
        self.used[frame["plan"]] = []
        self.passing[frame["plan"]] = Passing(frame, hashes[first:count], first, self.chance)

    def tell(self, frame: Frame) -> None:
        self.sent += 1
        self.connections[-1].sendall(encode(frame))

    def go_on(self, plan: Passing) -> None:
        """Place some of the next blocks, as far as the depth allows, and end the plan after the last one."""
        number = plan.named["plan"]
        room = min(DEPTH - len(self.used[number]), len(plan.hashes) - plan.placed, len(self.free))
        if plan.fault not in ("none", "abort", "preempt"):
            room = min(room, plan.fault_at - plan.placed)
        count = self.chance.randint(0, max(0, room))
        if count > 0:
            slots = [self.free.pop(self.chance.randrange(len(self.free))) for _ in range(count)]
            for at, slot in enumerate(slots):
                self.content[slot] = plan.hashes[plan.placed + at]
            self.used[number] += slots
            packed = struct.pack(f"<{count}I", *slots)
            first = plan.first + plan.placed
            self.tell({"t": "placed", **plan.named, "group": 0, "first": first, "slots": packed})
            plan.placed += count
        if plan.placed > 0 and not plan.is_told:
            plan.is_told = True
            self.tell({"t": "load", **plan.named})
        if plan.placed == len(plan.hashes):
            self.end(plan, "complete")

    def end(self, plan: Passing, reason: str) -> None:
        plan.is_over = True
        self.tell({"t": "done", **plan.named, "reason": reason})
        if reason != "complete" and self.chance.random() < 0.5:
            late = {
                "group": 0,
                "first": plan.first + plan.placed,
                "slots": struct.pack("<I", LATE_SLOT),
            }
            self.tell({"t": "placed", **plan.named, **late})


class WindowRig(Rig):
    """A scheduler whose workers copy parts some steps late, and whose pages are checked."""

    def __init__(self, model: str, chance: random.Random) -> None:
        self.chance = chance
        super().__init__(model, blocks=BLOCKS * REQUESTS + 20, running=8, step_tokens=5 * BLOCK)
        self.pages: dict[int, bytes] = {}
        self.wrong = 0
        self.parts: list[tuple[int, Any]] = []
        self.hung: set[str] = set()
        self.heard = self.told = 0
        self.done = Counter[str]()
        shim, book = self.shim, self.shim._book
        hear, send = shim.on_frame, book._send

        def on_frame(frame: Frame) -> None:
            hear(frame)
            self.heard += "plan" in frame

        def sent(frame: Frame) -> bool:
            self.told += 1
            return bool(send(frame))

        shim.on_frame, book._send = on_frame, sent

    def make_vault(self) -> Vault:
        return WindowVault(self.path, self.chance)

    def settle(self) -> None:
        if not hasattr(self, "told"):
            return
        vault = self.vault
        assert isinstance(vault, WindowVault)
        wait_until(lambda: vault.taken == self.told, "the vault has heard all")
        for plan in list(vault.passing.values()):
            if not plan.is_over:
                self._go_on(vault, plan)
        wait_until(lambda: self.heard == vault.sent, "the shim has heard all")
        for name in self.hung:
            self._forget_time(name)

    def _go_on(self, vault: WindowVault, plan: Passing) -> None:
        vault.go_on(plan)
        name, at = plan.named["req"], plan.placed
        if plan.is_over or at < plan.fault_at or plan.fault == "none":
            return
        fault, plan.fault = plan.fault, "none"
        self.done[fault] += 1
        if fault == "hang":
            plan.is_over = True
            self.hung = {name, *(self.hung & self.scheduler.requests.keys())}
        elif fault == "abort":
            self.abort(name)
        elif fault == "preempt" and not self.shim._windows.by_id:
            self.preempt_all()
        elif fault != "preempt":
            vault.end(plan, fault)

    def _forget_time(self, name: str) -> None:
        """Let `stall_ms` have passed since the last frame about a request's plan."""
        long_ago = -1e9
        state = self.shim._requests.get(name)
        if state is not None:
            state.first_ask_s = long_ago
        for window in self.shim._windows.by_id.values():
            if window.plan.req_id == name:
                window.plan.progress_at_s = window.begun_at_s = long_ago
        plan = self.shim._book.get(name)
        if plan is not None:
            plan.progress_at_s = long_ago
        self.shim._windows._looked_at_s = float("inf")
        self.shim._windows._awake_since_s = long_ago

    def _work(self, output: Any) -> KVConnectorOutput | None:
        metadata = output.kv_connector_metadata
        receipts = StepReceipts()
        told = KVConnectorOutput()
        self.parts += [
            (self.step_number + self.chance.choice((0, 0, 1, 2)), part) for part in metadata.loads
        ]
        finished: set[str] = set()
        while self.parts and self.parts[0][0] <= self.step_number:
            _, part = self.parts.pop(0)
            if part.is_cut:
                told.invalid_block_ids |= set(part.block_ids)
            for block_id, slot in zip(part.block_ids, part.slots, strict=not part.is_cut):
                self.pages[block_id] = self.vault.content.get(slot, b"nobody's")  # type: ignore[attr-defined]
            if part.number:
                receipts.copied[part.number] = 1
            if part.last:
                finished.add(part.req_id)
                self.loads += 1
        if metadata.question:
            receipts.memory[0] = Memory(metadata.question, is_loaded=True)
        if metadata.saves:
            receipts.tickets[metadata.ticket] = 1
        for name, count in output.num_scheduled_tokens.items():
            self._compute(name, count)
        told.finished_recving = finished or None
        told.kv_connector_worker_meta = None if receipts.is_empty else receipts
        return told

    def _compute(self, name: str, count: int) -> None:
        """Check every whole page before the step's tokens, and fill the ones that the step completes."""
        request = self.scheduler.requests[name]
        (table,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        end = request.num_computed_tokens  # advanced by `schedule`
        start = end - count
        hashes = [bytes(each) for each in request.block_hashes]
        for index in range(min(start // BLOCK, len(hashes))):
            self.wrong += self.pages.get(table[index]) != hashes[index]
        for index in range(start // BLOCK, min(-(-end // BLOCK), len(table))):
            whole = index < len(hashes) and (index + 1) * BLOCK <= end
            self.pages[table[index]] = hashes[index] if whole else b"unfinished"


def main() -> None:
    model, seed, restores = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)
    rig = WindowRig(model, chance)
    asked = 0
    while asked < restores:
        rig.step_number = 0  # a scene's own limit of steps
        prompts = [tokens(chance.randrange(1 << 20), BLOCKS * BLOCK + 5) for _ in range(REQUESTS)]
        for prompt in prompts:
            rig.store(prompt)
            rig.add(f"r{asked}", prompt)
            asked += 1
        rig.run()
        rig.vault.held.clear()
        assert rig.scheduler.reset_prefix_cache()
    counts = rig.counts()
    shim = counts["shim"]
    found = {
        "restores": asked,
        "faults": dict(rig.done),
        "wrong": rig.wrong,
        "wrong_frames": rig.vault.wrong_frames,  # type: ignore[attr-defined]
        "leaked": counts["leaked"],
        "off": counts["off"],
        "errors": [name for name in shim if name.startswith("errors_")],
        "status": counts["status"],
        "shim": shim,
    }
    rig.close()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
