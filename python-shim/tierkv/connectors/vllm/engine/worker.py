"""The worker-side half of the shim: copies pages as the scheduler side orders, and reports finished copies."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import (
    Introduction,
    LoadPart,
    SaveItem,
    StepMetadata,
    StepReceipts,
)
from tierkv.connectors.vllm.api.resolved import resolve
from tierkv.connectors.vllm.engine.gauge import StepGauge
from tierkv.connectors.vllm.link import failpoint
from tierkv.connectors.vllm.link.autostart import Autostart
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.counters import Counters, Durations
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.guard import Failures
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.connectors.vllm.naming.hello import hello_frame, register_frame
from tierkv.connectors.vllm.naming.weights import read_ahead
from tierkv.connectors.vllm.naming.weightwatch import WeightWatch
from tierkv.connectors.vllm.pages.arena import Arena
from tierkv.connectors.vllm.pages.copies import Batch, Copier, make_copier
from tierkv.connectors.vllm.pages.credits import Credits
from tierkv.connectors.vllm.pages.pages import Pages, make_pages
from tierkv.connectors.vllm.pages.probe import Prober, pages_part
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.restore.arrivals import Arrivals
from tierkv.connectors.vllm.restore.loads import NO_ARENA
from tierkv.connectors.vllm.save.tickets import Tickets
from tierkv.connectors.vllm.save.truth import likeness_db

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = logging.getLogger("tierkv.shim")


class WorkerShim:
    """One rank. Never waits for the sidecar: without a free slot a save is refused."""

    def __init__(
        self,
        config: "VllmConfig",
        settings: Settings,
        groups: list[Group],
        num_blocks: int,
        *,
        copies: int = 1,
    ) -> None:
        self.counters = Counters()
        self.failures = Failures(self.counters)
        self._config = config
        self._groups = {group.index: group for group in groups}
        self._num_blocks = num_blocks
        self._rank = config.parallel_config.rank
        self._world = config.parallel_config.world_size
        self._copies = copies
        self._credits = Credits(self.counters, self._send)
        self._pages: dict[int, Pages] = {}
        #: Copies nothing until the engine's tensors are registered.
        self._copier = Copier()
        self._gauge: StepGauge | None = None
        hello = hello_frame(config, "worker", self._rank, copies)
        # Started here, because vLLM still warms up for seconds before it makes the scheduler side.
        is_first = self._rank == 0 and compat.is_beside_scheduler(config)
        self._autostart = Autostart(settings) if is_first else None
        self._channel = Channel(
            settings.socket,
            hello,
            self,
            self.counters.take_changes,
            self._autostart.attempt if self._autostart is not None else lambda: None,
            reports=self._reports,
        )
        self._files = read_ahead(config, settings.identity) if groups and is_first else None
        self.arrivals = Arrivals(len(groups))
        self._tickets = Tickets()
        self._receipts = StepReceipts()
        self._slots_told: int | None = None
        #: The step that vLLM has bound.
        self.step = StepMetadata()
        #: Always empty: the scheduler side measures.
        self.restore_times = Durations()
        self.weights = WeightWatch()
        #: Arenas that later steps may load from, until this rank has given up the others.
        self._arenas_read: Sequence[int] = ()
        self._introduced = False
        #: The namespace's part on the pages of all groups.
        self._pages_part = ""
        self._socket = settings.place
        #: The step whose forward runs, until its blocks are copied.
        self._forward: StepMetadata | None = None
        self._is_warm = False
        self._is_in_process = compat.steps_by_calls_only()
        #: Receipts that vLLM took before this step's copies, as it does where a draft model computes after the forward.
        self._taken_early: StepReceipts | None = None
        self._is_asleep = False

    def register_kv_caches(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the engine's KV tensors and start talking to the sidecar."""
        if not self._groups:
            return
        began_s = time.monotonic()
        prober = Prober(self._config, self._num_blocks)
        found = [prober.look(group, tensors) for group in self._groups.values()]
        took_s = time.monotonic() - began_s
        self.counters.add("page_probe_us", math.ceil(took_s * 1e6))
        for before, look in zip(list(self._groups.values()), found, strict=True):
            index = look.group.index
            self._groups[index] = look.group
            self._pages[index] = make_pages(look.group, tensors, self._num_blocks, look.order)
            self.counters.add("pages_opaque" if look.order is None else "pages_canonical")
            level = (
                logging.DEBUG if look.group.page_format == before.page_format else logging.WARNING
            )
            log.log(level, "tierKV: pages of KV-cache group %d: %s", index, look.text)
        log.debug("tierKV: the order of K and V in pages was found in %.1f ms", took_s * 1e3)
        self._pages_part = pages_part(found)
        device = next(iter(self._pages.values())).device
        self._copier = make_copier(device)
        self.weights.read_loaded()
        # One rank is enough, because ranks step together.
        self._gauge = StepGauge(device) if self._rank == 0 else None
        self._channel.start()

    # --- the helper thread -------------------------------------------------------------------

    def on_open(self, welcome: Frame) -> None:
        """Describe this rank's groups; the sidecar answers with an arena once all ranks have."""
        del welcome
        if self._autostart is not None:
            self._autostart.served()
        self._send(register_frame(self._config, self._num_blocks, self._groups.values()))

    def on_frame(self, frame: Frame) -> None:
        if frame["t"] == "arena":
            self._credits.take_in(frame, self._copier)
        elif frame["t"] == "credits":
            self._credits.grant(frame["arena"], frame["slots"])

    def on_close(self) -> None:
        """Forget the credits; mapped arenas stay for loads that were admitted."""
        self._credits.end()

    def _send(self, frame: Frame) -> bool:
        return self._channel.send(frame)

    def _reports(self) -> Frame:
        return self._gauge.take() if self._gauge is not None else {}

    # --- the engine's thread -------------------------------------------------------------------

    def handle_preemptions(self, metadata: StepMetadata) -> None:
        """Keep states that are still being copied from being overwritten by this step; vLLM calls it before each."""
        del metadata
        self._copier.fence()

    def begin_step(self, metadata: StepMetadata) -> None:
        """Begin a step, whose forward comes next."""
        self._end_forward()
        self.step = metadata
        self._forward = metadata if metadata.has_forward and metadata.saves else None
        if not self._is_warm:
            self._is_warm = True
            self.warmed_up(patience_s=0.0)
        if self.arrivals.is_unconfirmed or self._tickets.is_unconfirmed:
            self.confirm()
        if metadata.is_off:
            self.turn_off("its scheduler side has")
            return
        if metadata.arenas:
            self._arenas_read = metadata.arenas
        if self._arenas_read and (old := self._credits.retire(self._arenas_read)) is not None:
            self._arenas_read = ()
            for arena in old:
                self._copier.retire(arena)
        self.weights.begin_step(metadata.step, metadata.question)
        gauge = self._gauge
        if failpoint.fails("shim.step.begun") or gauge is None:
            return
        if metadata.tokens or gauge.is_running:
            gauge.begin(metadata.tokens, metadata.attended)

    def warmed_up(self, *, patience_s: float = limits.MEMORY_WAIT_S) -> None:
        """Allow arenas to be pinned, as CUDA graphs are captured; and end reading what was loaded."""
        self._copier.may_pin()
        self.weights.end_reading(patience_s)

    def _end_forward(self) -> None:
        """Copy the last step's blocks if vLLM did not call `wait_for_save`.

        Runner V1 with drafts calls it on the last pipeline rank only; the blocks are referenced until every rank
        acknowledges, so they still hold what that forward computed.
        """
        last, self._forward = self._forward, None
        if last is not None and not self.failures.is_off:
            self.counters.add("saves_after_step")
            self._save_step(last)

    def start_load_kv(self, metadata: StepMetadata) -> None:
        """Copy this step's share of the admitted loads, and of the saves when no forward follows.

        Up to 0.30 vLLM calls no `wait_for_save` on steps without tokens. Before or after the forward, by release.
        """
        if metadata.loads:
            self._load_step(metadata)
        if not metadata.has_forward:
            self._save_step(metadata)

    def _load_step(self, metadata: StepMetadata) -> None:
        started = time.perf_counter()
        # Before 0.30 loads of several groups cannot fail; then old pages are no worse than vLLM's own.
        is_stale = self.weights.is_unheard(metadata) and self.arrivals.can_fail
        for part in metadata.loads:
            self._load(part, is_stale=is_stale)
        if self._gauge is not None:
            self._gauge.loaded(time.perf_counter() - started)

    def _load(self, part: LoadPart, *, is_stale: bool) -> None:
        is_broken = self.arrivals.is_broken(part.req_id)
        is_kept_off = is_stale or self._is_asleep
        if part.is_cut and not (is_broken or is_kept_off):
            self.arrivals.cut(part)
            return
        arena = None if failpoint.fails("shim.load.copy") else self._credits.mapped(part.arena)
        if arena is None or is_kept_off or is_broken:
            if is_kept_off:
                self.counters.add("load_weights_changed" if is_stale else "load_asleep")
            elif part.arena == NO_ARENA:
                self.counters.add("load_without_blocks")
            elif not is_broken:
                # Unreachable (the sidecar offers only mapped arenas), and still reported, once, with the last part.
                log.error("tierKV: arena %d of request %s is not mapped", part.arena, part.req_id)
                self.counters.add("load_without_arena")
            self.arrivals.fail(part)
            self._acknowledge(part)
            return
        self.arrivals.begin(part)
        slots = part.slots[self._rank // self._copies :: self._world // self._copies]
        batch = Batch(self._pages[part.group], arena, list(zip(part.block_ids, slots, strict=True)))
        batch.when_done.append(lambda: self._loaded(part, batch))
        self._copier.load(batch)
        self.counters.add("blocks_loaded", len(slots))
        self.counters.add("bytes_loaded", len(slots) * self._groups[part.group].block_bytes)

    def _loaded(self, part: LoadPart, batch: Batch) -> None:
        self._receipts.add_load(part.req_id, batch.seconds)
        self._acknowledge(part)
        self.arrivals.copied(part.req_id)

    def _acknowledge(self, part: LoadPart) -> None:
        """Note that this rank reads the part's slots no more."""
        if part.number:
            self._receipts.copied[part.number] += 1

    def wait_for_save(self, metadata: StepMetadata) -> None:
        """Copy the blocks this step's forward completed."""
        if self._gauge is not None and self._gauge.is_running:
            self._gauge.end()
        self._forward = None
        if metadata.has_forward:
            self._save_step(metadata)
            for item in metadata.checks:
                arena, found = self._credits.mapped(item.arena), math.inf
                if arena is not None:
                    slot = arena.slot(item.slots[self._rank // self._copies])
                    found = likeness_db(self._pages[item.group], item.block_id, slot)
                self._receipts.checks[item.number] = found

    def _save_step(self, metadata: StepMetadata) -> None:
        """Copy blocks into slots we hold credits for; the rest is refused, and waits in the engine's cache."""
        if not metadata.saves:
            return
        self._tickets.open(metadata.ticket)
        self._save_blocks(metadata)
        if self._is_in_process:
            self._copier.settle()  # no step follows a batch's last one, so its references would stay
            self._add_late()

    def _add_late(self) -> None:
        """Add this step's tickets to receipts that vLLM took before; the next ones repeat them, which has no effect."""
        early, self._taken_early = self._taken_early, None
        if early is not None:
            early.tickets.update(self._tickets.closed)
            early.refused.update(self._receipts.refused)

    def _save_blocks(self, metadata: StepMetadata) -> None:
        if self.weights.is_unheard(metadata):
            self._drop(metadata, "weights_changed")
        elif self._rank % self._copies:  # the first rank with the same pages stores them
            self._tickets.close(metadata.ticket)
        elif self._is_asleep:
            self._drop(metadata, "asleep")
        elif not metadata.namespace:
            self._drop(metadata, "no_name")
        else:
            self._save_into_slots(metadata)

    def _drop(self, metadata: StepMetadata, why: str) -> None:
        self.counters.add(f"dropped_save_{why}", len(metadata.saves))
        self._tickets.close(metadata.ticket)

    def _save_into_slots(self, metadata: StepMetadata) -> None:
        self._slots_told = None  # the planner has already subtracted these saves
        arena, granted = self._credits.take(len(metadata.saves))
        if arena is None and not self._credits.is_coming:
            self._drop(metadata, "no_sidecar")
            return
        taken = metadata.saves[: len(granted)]
        if len(taken) < len(metadata.saves):
            self._receipts.refused[metadata.ticket] = len(metadata.saves) - len(taken)
            self.counters.add("saves_put_off", len(metadata.saves) - len(taken))
        if arena is None:
            self._tickets.close(metadata.ticket)
        else:
            self._save(arena, taken, granted, metadata)

    def _save(
        self,
        arena: Arena,
        items: Sequence[SaveItem],
        granted: list[tuple[int, int]],
        metadata: StepMetadata,
    ) -> None:
        by_group: dict[int, list[tuple[SaveItem, tuple[int, int]]]] = {}
        for item, slot in zip(items, granted, strict=True):
            by_group.setdefault(item.group, []).append((item, slot))
        waiting = len(by_group)

        def batch_done(saved: list[tuple[SaveItem, tuple[int, int]]]) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting <= 0:
                self._tickets.close(metadata.ticket)
            self._announce(arena, saved, metadata.namespace)

        if not by_group:
            self._tickets.close(metadata.ticket)
        for group, saved in by_group.items():
            pairs = [(item.block_id, slot) for item, (slot, _) in saved]
            batch = Batch(self._pages[group], arena, pairs)
            batch.when_done.append(lambda saved=saved: batch_done(saved))  # type: ignore[misc]
            self._copier.save(batch)

    def _announce(
        self, arena: Arena, saved: list[tuple[SaveItem, tuple[int, int]]], namespace: bytes
    ) -> None:
        if not self._credits.is_of(
            arena
        ):  # reconnected meanwhile: the slots belong to an older connection
            self.counters.add("dropped_save_no_sidecar", len(saved))
            return
        items = [
            [
                *(slot, generation, item.group, item.block_hash, item.parent_hash),
                *(item.end_tokens, item.tenant, item.anchor or item.block_hash),
            ]
            for item, (slot, generation) in saved
        ]
        named = {"arena": arena.arena_id, "namespace": namespace}
        save: Frame = {"t": "save", **named, "items": items}
        if not failpoint.fails("shim.save.copied") and self._send(save):
            self.counters.add("blocks_offered", len(items))
            offered = sum(self._groups[item.group].block_bytes for item, _ in saved)
            self.counters.add("bytes_offered", offered)
        else:
            self.counters.add("dropped_save_no_sidecar", len(items))

    @property
    def has_transfers(self) -> bool:
        return self.arrivals.has_news or self._copier.is_running

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Give the ids received since the last call, and those that failed; each admission appears once."""
        self._copier.poll()
        received, failed = self.arrivals.take()
        self._receipts.failed |= failed
        return received, failed

    def take_receipts(self) -> StepReceipts | None:
        """Give finished tickets and, if changed, the slots left; None without news."""
        if self._tickets.closed:
            self._receipts.tickets = self._tickets.take()
        # A rank whose pages another rank stores saves none.
        slots = self._credits.left if self._rank % self._copies == 0 else None
        if slots != self._slots_told:
            self._receipts.slots = self._slots_told = slots
        if self.weights.has_news or self.step.question:
            self.weights.report(self.step, self._receipts, self._rank)
        if not self._introduced:
            mine = self.introduce()
            self._receipts.resolved[mine.rank] = mine.resolved
        # Of several ranks each acknowledges a ticket once, so only a single one may add to what was taken.
        is_early = self._forward is not None and self._is_in_process and self._world == 1
        if self._receipts.is_empty and not is_early:
            return None
        receipts, self._receipts = self._receipts, StepReceipts()
        self._taken_early = receipts if is_early else None
        return receipts

    def sleep(self, *, is_asleep: bool) -> None:
        """Touch no page while vLLM has released its memory, which returns at the same addresses."""
        self._is_asleep = is_asleep
        if is_asleep:
            self._copier.settle()
            self.arrivals.break_open()

    def introduce(self) -> Introduction:
        """Give this rank's configuration; called once, when the model is loaded."""
        self._introduced = True
        resolved = resolve(self._config)
        parts = {**resolved.parts, "pages": self._pages_part}
        return Introduction(self._rank, replace(resolved, parts=parts, socket=self._socket))

    def turn_off(self, why: str) -> None:
        """Load and save nothing any more: waits for running copies, reports open loads as failed. Never raises."""
        if not self.failures.turn_off(why):
            return
        self.failures.attempt("turn_off", self._copier.settle)
        self.failures.attempt("turn_off", self.arrivals.fail_all)
        self._tickets.close_all()
        self.failures.attempt("turn_off", self._channel.retire)

    def confirm(self) -> None:
        """Confirm that vLLM got the results of the last step's calls."""
        self.arrivals.confirm()
        self._tickets.confirm()

    def owe_step(self, metadata: StepMetadata) -> None:
        """Report the loads of a step as failed, and acknowledge its saves."""
        for part in metadata.loads:
            self.arrivals.fail(part)
        self.owe_saves(metadata)

    def owe_saves(self, metadata: StepMetadata) -> None:
        """Acknowledge the saves of a step, so that their blocks are the engine's again."""
        if metadata.saves:
            self._tickets.owe(metadata.ticket)
        self._tickets.close_all()

    def owed_receipts(self) -> StepReceipts:
        """Give the tickets that the scheduler side waits for, and that this rank is off."""
        return StepReceipts(self._tickets.take_again(), is_off=True)

    def shutdown(self) -> None:
        """End the connection; the sidecar takes its slots back at the socket's end."""
        if self._files is not None:
            self._files.close()
        self._channel.close()
        self.failures.attempt("shutdown", self._copier.close)

    def status(self) -> dict[str, Any]:
        """Give the state of credits, for tests and logs."""
        left = self._credits.left
        return {"credits": left or 0, "arena": left is not None}
