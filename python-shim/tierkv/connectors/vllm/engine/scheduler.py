"""The scheduler-side half of the shim: prefetches on arrival, answers vLLM from local state, plans saves and loads."""

import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import StepMetadata, StepReceipts
from tierkv.connectors.vllm.api.resolved import Resolved, reaching
from tierkv.connectors.vllm.engine.events import StorageEvents
from tierkv.connectors.vllm.engine.gauge import prompt_work
from tierkv.connectors.vllm.engine.owed import Owed
from tierkv.connectors.vllm.link.autostart import Autostart
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.guard import Failures
from tierkv.connectors.vllm.link.settings import Settings
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.naming.generation import Generations
from tierkv.connectors.vllm.naming.hello import hello_frame
from tierkv.connectors.vllm.naming.markers import Markers
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.naming.weights import Weights, weights_of
from tierkv.connectors.vllm.pages import replicas
from tierkv.connectors.vllm.pages.amx import FirstStep
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.specs import Group
from tierkv.connectors.vllm.requests.answers import Given, answer, drop_malformed, wish_of
from tierkv.connectors.vllm.requests.divergence import Divergences
from tierkv.connectors.vllm.requests.first_tokens import FirstTokens
from tierkv.connectors.vllm.requests.leaders import Leaders
from tierkv.connectors.vllm.requests.plan_group import LoadMismatchError
from tierkv.connectors.vllm.requests.plans import Plan, PlanBook
from tierkv.connectors.vllm.requests.requests import (
    Backlog,
    RequestState,
    beside_hashes,
    is_cacheable,
    note_length,
)
from tierkv.connectors.vllm.requests.sessions import Sessions
from tierkv.connectors.vllm.requests.unasked import Unasked
from tierkv.connectors.vllm.restore.budget import Budget, StepRoom
from tierkv.connectors.vllm.restore.handoffs import Handoffs
from tierkv.connectors.vllm.restore.idle import IdleSteps
from tierkv.connectors.vllm.restore.loads import LoadQueue
from tierkv.connectors.vllm.restore.running import RunningSlots
from tierkv.connectors.vllm.restore.sharing import SharedPlans
from tierkv.connectors.vllm.restore.windows import Windows
from tierkv.connectors.vllm.save.offers import StepOffers
from tierkv.connectors.vllm.save.saves import SavePlanner
from tierkv.connectors.vllm.save.truth import TruthChecks

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

log = logging.getLogger("tierkv.shim")

#: vLLM's answer to "how many tokens do you have": (tokens, loads asynchronously); None tokens = ask again.
Match = tuple[int | None, bool]
_NOTHING: Match = (0, False)


class SchedulerShim:
    """One engine. Methods run on the engine's thread and touch local state only; the socket is the channel's."""

    def __init__(
        self,
        config: "VllmConfig",
        settings: Settings,
        groups: list[Group],
        kv_cache_config: "KVCacheConfig",
        *,
        copies: int = 1,
        weights: Weights | None = None,
    ) -> None:
        self.counters = Counters()
        self.failures = Failures(self.counters)
        self._grid = Grid(groups, compat.hash_block_tokens(config, kv_cache_config))
        self._world = config.parallel_config.world_size
        compat.check_hash_root()
        parts = namespace.ingredients(config, groups, self._grid.hash_tokens)
        model = str(config.model_config.model)
        found = weights or weights_of(config, settings.identity)
        order = namespace.order_of(groups)
        self._naming = Naming(parts, model, self._world, found, self.counters, order=order)
        self._handoffs = Handoffs(config, self._grid, self._naming, self.counters)
        self._generations = Generations(self._world)
        self._idle, self._unasked = IdleSteps(), Unasked()
        self._divergences = Divergences(Markers(config), self._grid.hash_tokens)
        self._pool: Any = None
        self._first_step, self._tables = FirstStep(self._grid), compat.BlockTables()
        self._requests, self._backlog = dict[str, RequestState](), Backlog()
        self._loads = LoadQueue({group.index: group.block_bytes for group in groups})
        self._arena_told = -1
        self._running = RunningSlots(compat.running_slots(config))
        self._leaders = Leaders(self._grid, self._loads, self.counters)
        called = partial(self._naming.called, self._world // copies)
        self.events = StorageEvents(config, kv_cache_config, self._grid, self.counters, called)
        self._saves = SavePlanner(
            self._grid, self._world, kv_cache_config.num_blocks, self.counters, self.events.saw
        )
        self._offers = StepOffers(self._saves, self._naming, self._requests, self.counters)
        self.owed = Owed(self.failures, self._grid, self._requests, self._loads, self._saves)
        loads_windows = self._grid.is_plain and compat.ends_loads(config, kv_cache_config)
        self._hello = hello_frame(config, "scheduler", 0, copies, loads_windows=loads_windows)
        self._autostart = Autostart(settings)
        start = self._autostart.attempt
        changes, reports = self.counters.take_changes, self._reports
        strangers = partial(self.counters.add, "sidecar_not_ours")
        self._channel = Channel(
            settings.socket, self._hello, self, changes, start, reports=reports, strangers=strangers
        )
        send, visits = self._channel.send, self._saves.visits
        self._sessions = Sessions(self._grid, self._naming, send, self.counters, visits)
        self._book = PlanBook(self._channel.send, self._world // copies)
        self._shared = SharedPlans(self._grid, self._book)
        self.restore_times = self._book.restore_times
        self._first_tokens = FirstTokens(self._channel.send)
        room = StepRoom(self._grid, int(config.scheduler_config.max_num_batched_tokens))
        self._budget = Budget(room, self._book, self._channel.suspect, self.counters)
        self._windows = Windows(
            self._loads, self._book, self._world, lambda: self._budget.stall_s, self.counters
        )
        has_drafts = replicas.has_draft_layers(config)
        self._truth = TruthChecks(self._book, self.counters, has_drafts=has_drafts)
        self._socket = settings.place
        #: Connection and whether blocks were left to save, as last reported.
        self._told_saving = (0, False)
        if groups:
            found.when_known = self._channel.report
            found.begin()
            self._channel.start()

    # --- the helper thread -------------------------------------------------------------------

    def on_open(self, welcome: Frame) -> None:
        self._naming.open()
        self._truth.configure(welcome)
        self._budget.wait_s = float(welcome["wait_ms"]) / 1000
        self._budget.stall_s = float(welcome["stall_ms"]) / 1000
        self._book.opened()
        self._naming.ask(self._book.connection, self._channel.send)
        self._autostart.served()

    def on_frame(self, frame: Frame) -> None:
        if frame["t"] == "fidelity":
            self._naming.hear(frame)
            self._truth.is_lossy = self._naming.is_lossy
        self.events.hear(frame)
        self._book.on_frame(frame)
        self._idle.hear()

    def on_close(self) -> None:
        """Forget every plan vLLM has not admitted."""
        self._book.closed()
        self._divergences.forget()
        self.events.lost()
        self._idle.hear()

    def _reports(self) -> Frame:
        if self.events.is_on and (audit := self.events.question()) is not None:
            self._channel.send(audit)
        self._naming.ask(self._book.connection, self._channel.send)
        return {
            **self._unasked.take(),
            **self._divergences.take(),
            **self._naming.report(),
            **self._saving(),
        }

    def _saving(self) -> Frame:
        """Give whether blocks are left to save, as a field of `counts`; empty where the sidecar knows."""
        now = (self._book.connection, self._saves.is_saving)
        if now == self._told_saving:
            return {}
        self._told_saving = now
        return {"saving": int(now[1])}

    def introduce(self, found: Mapping[int, Resolved]) -> None:
        """Take ranks' configurations; before the first request, or by their first step."""
        self._naming.introduce(reaching(found, self._socket))
        self._naming.ask(self._book.connection, self._channel.send)

    # --- arrival and matching -------------------------------------------------------------------

    def bind_gpu_block_pool(self, pool: Any) -> None:
        """Take the engine's block pool, to see its cached blocks and to hold references while saving."""
        self._pool = pool
        self._saves.bind_pool(pool)
        self._generations.bind_pool(pool)
        self._budget.room.bind_pool(pool)

    def on_new_request(self, request: Any) -> None:
        """Start to look up and fetch blocks that the engine's own cache lacks; runs before any scheduling."""
        if drop_malformed(request):
            self.counters.add("wishes_ignored")
        is_known = bool(self._grid.groups) and is_cacheable(request)
        if not is_known or len(self._requests) >= limits.REQUESTS_MAX:
            self.counters.add("requests_untouched")
            self._unasked.note(request, "too_many" if is_known else "not_cacheable")
            return
        state = self._requests[request.request_id] = self._handoffs.begin(request)
        self._backlog.join(state)
        note_length(request, self._grid, self.counters)
        self._sessions.note(state)
        if self._channel.is_up:
            self._divergences.note(request)
        is_up = state.reads and self._channel.is_up
        own = self._grid.own_hit(self._pool, request) if is_up else 0
        if not state.reads:
            self.counters.add(f"prompts_{self._handoffs.unread}")
            state.unasked = self._unasked.note(request, self._handoffs.unread)
        elif is_up and self._open_plan(state, own) is None:
            is_named = self._naming.is_done(self._book.connection)
            most, least = state.most(self._grid, own), self._book.tokens_min
            state.unasked = self._unasked.explain(
                request, own, most, least, is_named=is_named, is_capped=state.is_capped
            )

    def _open_plan(self, state: RequestState, first_tokens: int) -> Plan | None:
        tokens = state.most(self._grid, first_tokens)
        if tokens <= 0 or state.plans_opened >= limits.PLANS_PER_ADMISSION_MAX:
            return None
        if not self._channel.is_up or self._generations.is_mixed or not self._name_ourselves():
            return None
        awaited = self._handoffs.awaited(state, first_tokens, tokens)
        if not awaited and tokens - first_tokens < self._book.tokens_min:
            if state.first_ask_s is None:
                self.counters.add("prompts_below_gain")
            return None
        request = state.request
        if not awaited and not state.receipt and self._join(state, first_tokens, tokens):
            return state.plan
        state.plans_opened += 1
        asked = [(group, self._grid.hashes(request, group, tokens)) for group in self._grid.groups]
        state.ahead = self._backlog.ahead(state)
        beside = beside_hashes(state, self._grid.beyond(request), awaited)
        plan = self._book.open(request.request_id, asked, first_tokens, beside)
        self.counters.add("prefetches" if plan is not None else "prefetches_unsent")
        if plan is None:
            return None
        state.take_plan(plan)
        if not awaited and not state.receipt:
            self._shared.note(request, plan, first_tokens)
        return plan

    def _join(self, state: RequestState, first_tokens: int, tokens: int) -> bool:
        """Share another request's plan, unless so much lies beyond it that a look-up of its own is worth it."""
        found = self._shared.covering(state.request, first_tokens, tokens)
        if found is None or ((rest := tokens - found[1]) and rest >= self._book.tokens_min):
            return False
        self._book.share(state.request.request_id, found[0])
        state.take_plan(*found)
        self._unasked.note(state.request, "shared", first_tokens)
        self.counters.add("prefetches_shared")
        return True

    def _name_ourselves(self) -> bool:
        return self._naming.name(self._book.connection, self._channel.send)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Match:
        """Answer from verified blocks in local memory; None (ask again) only within the restore budget.

        Has no effect vLLM could see: asking twice gives the same answer, and a shrunken local hit is planned again.
        """
        has_slot = self._running.claim(request)
        state = self._requests.get(request.request_id)
        if state is None or not state.reads:
            return _NOTHING if has_slot else self._idle.ask_again()
        is_up, start, now = self._channel.is_up, num_computed_tokens, time.monotonic()
        if not has_slot or (self._leaders.by_id and self._follows(state, start, now)):
            state.asks()
            return self._idle.ask_again()
        if is_up and self._budget.goes_on_waiting(state, start, now):
            return self._idle.ask_again()
        state.asks()
        wanted = state.most(self._grid, start) - start
        if wanted <= 0 or state.gave_up or not is_up:
            return _NOTHING
        naming = self._naming
        # Workers tell with a step, and a sidecar decides once they have.
        if self._generations.is_unsure or naming.awaits_ranks or naming.awaits_fidelity:
            return self._wait_for_name(state, now)
        return self._match(state, start, wanted, now)

    def _wait_for_name(self, state: RequestState, now: float) -> Match:
        if not self._budget.is_out_for_name(state, now):
            return self._idle.ask_again()
        self.counters.add("restores_unnamed")
        plan = self._book.get(state.request.request_id)
        if plan is not None:
            plan.left_for = "weights_unread" if self._generations.is_unsure else "unnamed"
        return self._give_up(state)

    def _follows(self, state: RequestState, start: int, now: float) -> bool:
        most = state.most(self._grid, start)
        return most > start and self._leaders.follows(state, start, most, now)

    def _match(self, state: RequestState, start: int, wanted: int, now: float) -> Match:
        plan = self._book.get(state.request.request_id)
        if plan is None or start < plan.first_tokens:
            plan = self._open_plan(state, start)
            return self._idle.ask_again() if plan is not None else self._give_up(state)
        is_idle = len(self._requests) == 1
        # Slots of a load that runs early return, and a check needs one of them.
        plan.is_held_back = plan.windows == 1 and self._truth.is_due(plan, is_idle=is_idle)
        # First: the helper thread goes on placing.
        news, is_done, is_coming = plan.news, plan.is_done, plan.is_coming
        ready = min(state.ready_from(plan, start), wanted)
        if ready < wanted and not is_done and not is_coming:
            if not self._budget.is_out(state, plan, now):
                self._budget.wait(state, plan, news, start)
                return self._idle.ask_again()
            self.counters.add("restores_cut_short")
        if ready == 0:
            state.count_miss(plan, self.counters)
            return _NOTHING
        if state.refused_at_s:
            self._book.ask(plan)  # keeps its slots while vLLM has no room for it
        state.offer = (plan, start)
        plan.is_alone = is_idle
        return self._truth.choose(plan, start, ready, is_idle=is_idle), True

    def _give_up(self, state: RequestState) -> Match:
        state.gave_up = True
        return _NOTHING

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note the part of an offer that vLLM took; it is an admission exactly when `num_external_tokens` is not 0."""
        self._running.begin(request)
        state = self._requests.get(request.request_id)
        if state is None:
            return
        self._backlog.begin(state)
        asked_at_s = state.answered()
        if num_external_tokens == 0:
            self._book.release(request.request_id, is_begun=True)
            return
        assert state.offer is not None, f"{request.request_id} was given blocks we did not offer"
        plan, start = state.offer
        is_coming = plan.is_loadable and plan.placed_from(start) < num_external_tokens
        if is_coming:
            self._book.keep(plan)
        self._book.admit(request.request_id, plan)
        try:
            self._load(request.request_id, plan, (start, num_external_tokens), blocks)
        except LoadMismatchError as error:
            # vLLM would take an unfilled page for computed, so it is told to compute instead.
            log.error("tierKV: request %s is not restored: %s", request.request_id, error)  # noqa: TRY400
            self.counters.add("restores_mismatched")
            self.owed.alloc(request, blocks, num_external_tokens, plan)
            state.offer = None
            state.reads = False  # vLLM asks again, and would allocate the same blocks for ever
            return
        state.offer = None
        self._truth.admitted(request, plan)
        end = start + num_external_tokens
        self._leaders.begin(request, start, end, time.monotonic(), is_coming=is_coming)
        state.admit(plan, start, num_external_tokens, asked_at_s, self.counters)
        self.events.restored(state.request, plan, end)

    def _load(self, req_id: str, plan: Plan, span: tuple[int, int], blocks: Any) -> None:
        """Queue an admission of `span`: the tokens before it, and its tokens. Raises LoadMismatchError."""
        tables = blocks.get_block_ids()
        if not plan.is_kept:
            self._loads.add(req_id, plan, plan.blocks_from(*span, tables))
            return
        (group,) = plan.groups
        self._windows.begin(req_id, plan, *span, tables[group])

    def hit_sources(self, request: Any, tokens: int) -> dict[Any, int]:
        """Split vLLM's restored tokens by source; vLLM has no name for a vault."""
        state = self._requests.get(request.request_id)
        host = 0 if state is None else min(state.host_tokens, tokens)
        return compat.hit_sources(host, tokens - host)

    # --- steps -------------------------------------------------------------------

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """Give the workers this step's copies; drains per-step state without changing vLLM's."""
        scheduled = scheduler_output.num_scheduled_tokens
        if self._first_tokens.is_awaited:
            self._first_tokens.look(len(self._requests))
        if self._book.wanted_back:
            self._book.release_wanted()
        if self._windows.by_id and self._windows.is_waiting:
            self._idle.expect()
        if self._idle.is_stirred:
            self._idle.end(computes=bool(scheduled))
        if self._windows.by_id:
            self._windows.next_step()
        self._budget.room.next_step(is_idle=not scheduled)
        if self._running.is_claimed:
            self._running.next_step()
        self._tables.hear(scheduler_output)
        question = self._generations.next_step()
        computed = sum(scheduled.values())
        if self._first_step.is_awaited and self._first_step.note(computed):
            self._hello["amx_tiles"] = 0  # for a sidecar that is started later
        if self._generations.changed_at and self._generations.is_mixed:
            self._saves.forget("weights_changed")
        elif question:
            self._offers.put_off(scheduler_output)
        else:
            self._offers.choose(scheduler_output, self._tables)
        tokens, attended = prompt_work(scheduled, self._requests)
        fresh_bytes = int(computed * self._saves.token_bytes)
        ticket, saves = self._saves.next_step(computed, is_asking=question > 0)
        if saves and self._channel.is_up:
            self._name_ourselves()  # the sidecar drops saves of an engine without a name
        return StepMetadata(
            has_forward=bool(scheduled),
            step=self._generations.step,
            heard=self._generations.changed_at,
            tokens=tokens,
            attended=attended,
            ticket=ticket if saves else 0,
            namespace=self._naming.digest if saves else b"",
            saves=saves,
            loads=self._loads.next_parts(fresh_bytes) if self._loads.queue else [],
            checks=self._truth.next_step(scheduled, self._tables.of) if self._truth.checks else [],
            question=question,
            arenas=self._arenas() if self._book.arena != self._arena_told else (),
        )

    def _arenas(self) -> tuple[int, ...]:
        """Give the present arena once no load of a later step reads an older one, so that workers give those up."""
        arena = self._book.arena
        if self._loads.reads_beside(arena):
            return ()
        self._arena_told = arena
        return (arena,)

    def hand_over(self) -> None:
        """Note that the workers get the last planned step."""
        self._saves.commit()
        self._loads.commit()

    def update_connector_output(self, output: Any) -> None:
        """Take the workers' output: finished loads return their slots, copied saves their references."""
        told = output.kv_connector_worker_meta
        receipts = told if isinstance(told, StepReceipts) else StepReceipts()
        self._loads.took(receipts.loads)
        self._windows.hear(receipts.copied)
        for req_id in output.finished_recving or ():
            self._loaded(req_id, is_lost=receipts.is_off or req_id in receipts.failed)
        if receipts.resolved:
            self.introduce(receipts.resolved)
        self._saves.hear(receipts)
        if self._generations.hear(receipts):
            self._renew()
        if self._truth.hear(receipts.checks):
            self._distrust()
        if receipts.is_off:
            self.turn_off("a worker has")

    def _loaded(self, req_id: str, *, is_lost: bool) -> None:
        """End an admission that all ranks reported; others need its plan only if its request has ended meanwhile."""
        plan = self._loads.finish(req_id)
        state = self._requests.get(req_id)
        tokens = self._windows.finish(req_id)
        if plan is not None and tokens is not None:
            plan.taken_tokens = tokens
            is_lost |= tokens == 0
        if is_lost and plan is not None:
            plan.taken_tokens = 0
            self.counters.add("restores_failed")
        if state is not None and plan is not None:
            self._book.part(plan)
            if is_lost:
                state.lose_load()
            else:
                state.loaded(plan, self.counters)
        self._truth.loaded(req_id, plan)
        if state is not None and plan is not None and not is_lost:
            self._first_tokens.expect(state.request, plan)

    def _distrust(self) -> None:
        """Restore and save nothing more under this name."""
        self._naming.verdict = self._truth.verdict
        self._book.release_all()
        self._saves.forget("distrusted")

    def _renew(self) -> None:
        """Begin a generation: blocks found, fetched or waiting under the old one are dropped."""
        self._book.release_all()
        self._windows.fail_all()
        self._truth.clear()
        self._saves.forget("weights_changed")
        for state in self._requests.values():
            state.forget_blocks()
        self.counters.add("generations")
        self._naming.renew(self._generations.name)
        self._truth.is_lossy = self._naming.is_lossy

    def request_finished(self, request: Any) -> dict[str, Any] | None:
        """Forget a request; a load under way goes on and is still reported. Gives the answer's fields."""
        self._running.end(request.request_id)
        state = self._requests.pop(request.request_id, None)
        if state is None:
            return answer(wish_of(request), Given(), "not_cacheable")
        self._first_tokens.ended(request, len(self._requests))
        self._backlog.begin(state)
        self._windows.abort(request.request_id)
        self._saves.end(state)
        self._truth.drop(request.request_id)
        self._book.release(request.request_id)
        self._sessions.ended(state)
        if self._channel.is_up:
            self._divergences.note(request, is_ended=True)
        return state.answer(self._handoffs.told(state))

    def has_pending_work(self) -> bool:
        """Tell whether the engine should go on stepping: copies run, blocks are referenced, or a question waits."""
        if self._saves.has_work or len(self._loads) > 0 or self.events.has_news:
            return True
        return not self.failures.is_off and self._generations.has_question

    def has_pending_block_frees(self) -> bool:
        """Tell whether waiting a step frees engine blocks."""
        return self._saves.holds_blocks

    def reset_cache(self) -> bool:
        """Ask the workers whether weights stayed, else a new generation opens; vaults keep their records."""
        self._generations.reset()
        self._book.release_all()
        self._saves.forget("cache_reset")
        return True

    def turn_off(self, why: str) -> None:
        """Restore and save nothing any more; `owed` keeps promises to vLLM. Never raises."""
        if self.failures.turn_off(why):
            self.failures.attempt("turn_off", self._book.release_all)
            self.failures.attempt("turn_off", partial(self._saves.forget, "off"))
            self.failures.attempt("turn_off", self._channel.retire)

    def shutdown(self) -> None:
        """Drop what waits to be saved, and end the connection; the sidecar takes plans and slots back at its end."""
        self._saves.forget("engine_ended")
        self._naming.close()
        self._channel.close()

    def status(self) -> dict[str, int]:
        """Give work under way, for tests and logs: all zero when idle."""
        work = {"loads": len(self._loads), "saves": int(self._saves.has_work)}
        return {"requests": len(self._requests), "plans": len(self._book), **work}
