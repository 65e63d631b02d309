"""Restores by vLLM's own scheduler, with a fault in most of them; every page is checked before it is used.

Those of one group of full attention come window by window, those of a hybrid model as a whole. Pages and slots hold
names of blocks: a page that a step reads must hold the block of its place, on each rank. Ranks copy at their own times,
and vLLM puts together what they report. Arguments: a model's folder, the seed, the number of restores, the ranks, and
`window` for a second group of layers with a sliding window, else nothing.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections import Counter
from typing import Any

from tests.support.sidecar import wait_until
from tierkv.connectors.vllm.api.metadata import LoadPart, Memory, StepMetadata, StepReceipts
from tierkv.connectors.vllm.link.frames import Frame, encode
from tierkv.connectors.vllm.restore.arrivals import Arrivals
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from harness.scheduling import BLOCK, Rig, Vault, tokens

#: Blocks in use at a time, and blocks placed with one frame at most.
DEPTH = 4
BLOCKS = 16
REQUESTS = 3
#: Faults of the sidecar or its vault, which end the placing; then of the engine.
PLACING = ("vault_down", "bad_record", "slower", "flushed", "hang")
FAULTS = ("none", *PLACING, "abort", "preempt", "copy_failed")
LATE_SLOT = 1_000_000


#: Tokens that layers with a window see, as scheduling.py makes them.
WINDOW = 3 * BLOCK

#: A block of one group on one rank.
Named = tuple[int, bytes, int]
NOBODYS: Named = (-1, b"nobody's", -1)


class Passing:
    """One plan under way. `hashes`: from the first asked block on; `order`: (group, index) of each block to place."""

    def __init__(
        self, frame: Frame, hashes: list[bytes], first: int, groups: int, chance: random.Random
    ) -> None:
        self.named = {"req": frame["req"], "plan": frame["plan"]}
        self.hashes = hashes
        self.first = first
        self.order = [(group, at) for group in range(groups) for at in range(len(hashes))]
        self.placed = self.loaded = 0
        self.fault = chance.choice(FAULTS)
        #: Blocks placed when the fault comes.
        self.fault_at = chance.randrange(1, len(self.order) + 1)
        self.is_told = self.is_over = False


class WindowVault(Vault):
    """Places a few blocks at a time, in slots that it uses again as soon as they are said to be loaded.

    A block has a slot for each rank. Blocks of several `groups` are not loaded before all have come.
    """

    def __init__(self, path: str, chance: random.Random, ranks: int, groups: int) -> None:
        self.chance = chance
        self.ranks = ranks
        self.groups = groups
        self.depth = DEPTH if groups == 1 else BLOCKS * groups
        self.passing: dict[int, Passing] = {}
        self.content: dict[int, Named] = {}
        self.free = list(range(self.depth * (REQUESTS + 1) * ranks))
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
            for _ in range((count - plan.loaded) * self.ranks):
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
        self.content[slot] = NOBODYS
        self.free.append(slot)

    def _answer(self, frame: Frame) -> None:
        asked = frame["groups"]
        data, first = asked[0]["hashes"], asked[0]["from"]
        hashes = [data[at : at + 32] for at in range(0, len(data), 32)]
        count = self._held(hashes)
        of = {"req": frame["req"], "plan": frame["plan"]}
        bits = ((1 << count) - 1).to_bytes(len(hashes) // 8 + 1, "little")
        held = [{"group": each["group"], "held": bits} for each in asked]
        self.tell({"t": "held", **of, "groups": held, "tokens": max(count, first) * BLOCK})
        if count <= first:
            self.tell({"t": "done", **of, "reason": "end_of_hit"})
            return
        self.used[frame["plan"]] = []
        passing = Passing(frame, hashes[first:count], first, self.groups, self.chance)
        self.passing[frame["plan"]] = passing

    def tell(self, frame: Frame) -> None:
        self.sent += 1
        self.connections[-1].sendall(encode(frame))

    def go_on(self, plan: Passing) -> None:
        """Place some of the next blocks, as far as the depth allows, and end the plan after the last one."""
        number = plan.named["plan"]
        group, at = plan.order[plan.placed]
        used, free = len(self.used[number]) // self.ranks, len(self.free) // self.ranks
        room = min(self.depth - used, len(plan.hashes) - at, free)
        if plan.fault in PLACING:
            room = min(room, plan.fault_at - plan.placed)
        count = self.chance.randint(0, max(0, room))
        if count > 0:
            each = range(count * self.ranks)
            slots = [self.free.pop(self.chance.randrange(len(self.free))) for _ in each]
            for number_of, slot in enumerate(slots):
                block, rank = divmod(number_of, self.ranks)
                self.content[slot] = (group, plan.hashes[at + block], rank)
            self.used[number] += slots
            placed = {"group": group, "first": plan.first + at}
            packed = struct.pack(f"<{len(slots)}I", *slots)
            self.tell({"t": "placed", **plan.named, **placed, "slots": packed})
            plan.placed += count
        if plan.placed > 0 and not plan.is_told and self.groups == 1:
            plan.is_told = True
            self.tell({"t": "load", **plan.named})
        if plan.placed == len(plan.order):
            self.end(plan, "complete")

    def end(self, plan: Passing, reason: str) -> None:
        plan.is_over = True
        self.tell({"t": "done", **plan.named, "reason": reason})
        if reason != "complete" and self.chance.random() < 0.5:
            late = {
                "group": 0,
                "first": plan.first + plan.placed,
                "slots": struct.pack(f"<{self.ranks}I", *[LATE_SLOT] * self.ranks),
            }
            self.tell({"t": "placed", **plan.named, **late})


class Rank:
    """One worker: copies parts in order, some steps late. `pages`: by group and the engine's block."""

    def __init__(self, number: int, vault: WindowVault, chance: random.Random) -> None:
        self._number = number
        self._vault = vault
        self._chance = chance
        self._parts: list[tuple[int, LoadPart]] = []
        self._arrivals = Arrivals(vault.groups)
        #: Requests whose next part cannot be copied.
        self.failing: set[str] = set()
        self.pages: dict[tuple[int, int], Named] = {}
        self.wrong = 0

    def work(self, metadata: StepMetadata, step: int) -> KVConnectorOutput:
        self._arrivals.confirm()
        self._parts += [(step + self._chance.choice((0, 0, 1, 2)), part) for part in metadata.loads]
        receipts = StepReceipts()
        while self._parts and self._parts[0][0] <= step:
            self._load(self._parts.pop(0)[1], receipts)
        if metadata.question:
            receipts.memory[self._number] = Memory(metadata.question, is_loaded=True)
        if metadata.saves:
            receipts.tickets[metadata.ticket] = 1
        received, failed = self._arrivals.take()
        told = KVConnectorOutput(finished_recving=(received | failed) or None)
        told.failed_recving = failed
        told.invalid_block_ids = self._arrivals.take_failed_blocks()
        receipts.failed |= failed
        told.kv_connector_worker_meta = None if receipts.is_empty else receipts
        return told

    def _load(self, part: LoadPart, receipts: StepReceipts) -> None:
        """As the worker's half does (engine/worker.py)."""
        arrivals = self._arrivals
        if part.is_cut and not arrivals.is_broken(part.req_id):
            arrivals.cut(part)
            return
        if part.number:
            receipts.copied[part.number] += 1
        if part.req_id in self.failing or arrivals.is_broken(part.req_id) or not part.slots:
            self.failing.discard(part.req_id)
            arrivals.fail(part)
            return
        arrivals.begin(part)
        slots = part.slots[self._number :: self._vault.ranks]
        for block_id, slot in zip(part.block_ids, slots, strict=True):
            self.pages[part.group, block_id] = self._vault.content.get(slot, NOBODYS)
        arrivals.copied(part.req_id)

    def compute(
        self, group: int, table: list[int], hashes: list[bytes], start: int, end: int
    ) -> None:
        """Check every whole page before the step's tokens that they see, and fill the ones that the step completes."""
        seen = 0 if group == 0 else max(0, start - WINDOW + 1) // BLOCK
        for index in range(seen, min(start // BLOCK, len(hashes))):
            right = (group, hashes[index], self._number)
            self.wrong += self.pages.get((group, table[index])) != right
        for index in range(start // BLOCK, min(-(-end // BLOCK), len(table))):
            is_whole = index < len(hashes) and (index + 1) * BLOCK <= end
            made = (group, hashes[index], self._number) if is_whole else NOBODYS
            self.pages[group, table[index]] = made


class WindowRig(Rig):
    """A scheduler whose workers copy parts some steps late, and whose pages are checked."""

    def __init__(self, model: str, chance: random.Random, ranks: int, beside: str) -> None:
        self.chance = chance
        self.ranks = ranks
        self.groups = 2 if beside else 1
        blocks = self.groups * BLOCKS * REQUESTS + 20
        step_tokens = 5 * BLOCK
        super().__init__(
            model, blocks=blocks, running=8, step_tokens=step_tokens, ranks=ranks, beside=beside
        )
        self.workers = [Rank(number, self.vault, chance) for number in range(ranks)]  # type: ignore[arg-type]
        self._aggregator = KVOutputAggregator(ranks)
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
        return WindowVault(self.path, self.chance, self.ranks, self.groups)

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
        elif fault == "copy_failed":
            self.chance.choice(self.workers).failing.add(name)
        elif fault == "preempt" and not self._has_loads():
            self.preempt_all()
        elif fault != "preempt":
            vault.end(plan, fault)

    def _has_loads(self) -> bool:
        """Tell whether vLLM keeps blocks for a load, of an aborted request too, so that it cannot empty its cache."""
        is_waiting = any(map(self.is_loading, self.scheduler.requests))
        return is_waiting or len(self.shim._loads) > 0

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
        self.loads += sum(part.last for part in metadata.loads)
        told = [
            ModelRunnerOutput(
                req_ids=[],
                req_id_to_index={},
                kv_connector_output=worker.work(metadata, self.step_number),
            )
            for worker in self.workers
        ]
        for name, count in output.num_scheduled_tokens.items():
            self._compute(name, count)
        joined = self._aggregator.aggregate(told)
        return None if joined is None else joined.kv_connector_output

    def _compute(self, name: str, count: int) -> None:
        request = self.scheduler.requests[name]
        end = request.num_computed_tokens  # advanced by `schedule`
        hashes = [bytes(each) for each in request.block_hashes]
        for group, table in enumerate(self.scheduler.kv_cache_manager.get_block_ids(name)):
            for worker in self.workers:
                worker.compute(group, table, hashes, end - count, end)


def main() -> None:
    model, beside = sys.argv[1], sys.argv[5]
    seed, restores, ranks = map(int, sys.argv[2:5])
    chance = random.Random(seed)
    rig = WindowRig(model, chance, ranks, beside)
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
        "wrong": sum(worker.wrong for worker in rig.workers),
        "loads": rig.loads,
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
