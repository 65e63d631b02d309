"""Owns the calls for a program with mlx-lm: restore a cache, keep one, compute to a boundary where states need it."""

import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.link import Asked, Link, Plan, Save
from tierkv.connectors.vllm.link.settings import load_settings
from tierkv.mlx import kinds
from tierkv.mlx.chain import Extra, chunk_hashes
from tierkv.mlx.kinds import Group
from tierkv.mlx.naming import Naming, software

log = logging.getLogger("tierkv.shim")

_TOKENS = limits.MLX_CHUNK_TOKENS
_NO_PARENT = bytes(32)


class Tier:
    """One model of one process. Called from the computing thread; on any failure, calls give nothing back.

    `cache, rest = tier.prepare(tokens)`, then `stream_generate(model, tokenizer, rest, prompt_cache=cache)`, then
    `tier.keep(tokens, cache)`, where `tokens` are all tokens the cache has seen.
    """

    def __init__(
        self,
        model: nn.Module,
        make_cache: Callable[[], list[Any]] | None = None,
        config: Mapping[str, Any] | None = None,
        label: str = "",
    ) -> None:
        """Compute one token, to learn the shapes of `make_cache`'s caches; by default the model's own.

        `config`: `config_path`, `socket`, `autostart`, as in vLLM's `kv_connector_extra_config`; raises ValueError
        for a bad one. `label`: the model's name, for people.
        """
        self._off = ""
        self._model = model
        self._naming: Naming | None = None
        self._make_cache = make_cache or (lambda: make_prompt_cache(model))
        self._groups: list[Group] = []
        self._known: OrderedDict[tuple[int, bytes], None] = OrderedDict()
        self._steps: deque[list[int]] = deque(maxlen=limits.STEP_SAMPLES_MAX)
        self._link: Link | None = None
        settings = load_settings(config or {})
        try:
            self._groups = self._probe()
        except (kinds.RefusedKindError, kinds.ChangedShapeError) as error:
            self._refuse(str(error))
            return
        except Exception as error:  # a model that needs more than tokens
            log.exception("tierKV: a model's caches cannot be seen")
            self._refuse(f"it does not compute a token alone ({error!r})")
            return
        naming = self._naming = Naming(model, self._groups)
        if naming.refused:
            return
        register: Frame = {
            "t": "register",
            "model": label or type(model).__module__.rpartition(".")[2],
            "max_model_len": limits.MLX_PROMPT_TOKENS,
            "step_tokens": limits.MLX_PREFILL_TOKENS,
            "kv_blocks": limits.MLX_PROMPT_TOKENS // _TOKENS,
            "groups": [group.registration() for group in self._groups],
        }
        self._link = Link(
            settings,
            software(),
            register,
            engine=f"mlx-{uuid.uuid4()}",
            kind="mlx-lm",
            name=naming.name,
            identity=naming.identity,
            reports=self._report,
            opened=naming.forget,
            decided=lambda _frame: None,
        )
        self._link.start()

    def _probe(self) -> list[Group]:
        cache = self._make_cache()
        self._model(mx.array([[0]]), cache=cache)
        mx.eval([c.state for c in cache])
        groups = kinds.groups_of(cache)
        if any(part is not None and part.shape[0] != 1 for g in groups for part in g.parts):
            raise kinds.ChangedShapeError("its caches hold several prompts")
        return groups

    #: Tokens of a block.
    chunk = _TOKENS

    @property
    def refused(self) -> str:
        """Give why nothing is restored or kept; empty while the tier works."""
        return self._off or ("" if self._naming is None else self._naming.refused)

    def new_cache(self) -> list[Any]:
        """Give an empty cache of the kind that is kept."""
        return self._make_cache()

    @property
    def needs_boundaries(self) -> bool:
        """Tell whether caches can be kept only at a chunk's end, because of states or a rotating window."""
        return any(not group.rows for group in self._groups)

    @property
    def counters(self) -> dict[str, int]:
        """Give counts of restored, saved and dropped blocks, by reason."""
        return {} if self._link is None else self._link.counters.snapshot()

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the model is named and a sidecar is there; False after `timeout_s`. Calling it is optional."""
        return self._link is not None and self._link.wait_until_on(timeout_s)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def prepare(
        self, tokens: Sequence[int], extras: Iterable[Extra] = ()
    ) -> tuple[list[Any], list[int]]:
        """Give a cache for a prompt, restored as far as it can be, and the tokens that are left to compute.

        For a model with states or windows the rest up to the last whole chunk is computed, and kept.
        """
        tokens = list(tokens)
        found = self.restore(tokens, extras=extras)
        cache, done = (self._make_cache(), 0) if found is None else found
        done = self.prefill(tokens, cache, done, extras)
        return cache, tokens[done:]

    def restore(
        self, tokens: Sequence[int], own: int = 0, extras: Iterable[Extra] = ()
    ) -> tuple[list[Any], int] | None:
        """Give a new cache and how many tokens it holds; None where that is no more than `own`."""
        link = self._ready_link()
        try:
            hashes = chunk_hashes(tokens[:-1], extras)  # one token is always computed
            if link is None or len(hashes) * _TOKENS <= own:
                return None
            return self._restore(link, hashes, own)
        except Exception as error:  # the engine computes on without us
            log.exception("tierKV: a restore failed")
            self._refuse(f"an error ({error!r})")
            return None

    def _restore(self, link: Link, hashes: list[bytes], own: int) -> tuple[list[Any], int] | None:
        groups = self._groups
        plan = link.ask([Asked(g.index, g.record_class, hashes) for g in groups])
        if plan is None:
            return None
        started = time.perf_counter()
        tokens = 0
        try:
            self._learn(plan, hashes)
            count = self._usable(plan, len(hashes))
            if count * _TOKENS <= own:
                link.counters.add(f"misses_{plan.reason}")
                return None
            cache = self._make_cache()
            leaves = kinds.leaves_of(cache)
            for group in groups:
                views = link.read(plan, group.index, range(0 if group.rows else count - 1, count))
                if views is None:
                    link.counters.add("misses_not_placed")
                    return None
                rooms = [np.frombuffer(view, np.uint8)[: group.block_bytes] for view in views]
                kinds.restore(group, leaves, count * _TOKENS, rooms)
                link.counters.add("blocks_loaded", len(rooms))
                link.counters.add("bytes_loaded", len(rooms) * group.block_bytes)
            mx.eval([c.state for c in cache])
            tokens = count * _TOKENS
            link.counters.add("tokens_restored", tokens)
            return cache, tokens
        finally:
            link.release(plan, tokens, time.perf_counter() - started)

    def _usable(self, plan: Plan, most: int) -> int:
        """Give the usable chunks: any placed prefix for rows alone, else the chosen boundary."""
        if self.needs_boundaries or len(self._groups) > 1:
            return min(plan.tokens // _TOKENS, most) if plan.reason == "complete" else 0
        placed = plan.slots.get(self._groups[0].index, {})
        return next((at for at in range(most) if at not in placed), most)

    def prefill(
        self, tokens: Sequence[int], cache: list[Any], done: int, extras: Iterable[Extra] = ()
    ) -> int:
        """Compute on from `done` tokens to the last whole chunk, keep that, and give how many tokens are done.

        Does nothing for models whose caches can be cut anywhere, which are kept once computed.
        """
        link = self._ready_link()
        if link is None or not self.needs_boundaries:
            return done
        # Chunks without a name are not computed here, because they may hold a picture.
        hashes = chunk_hashes(tokens[:-1], extras)
        end = len(hashes) * _TOKENS
        step = limits.MLX_PREFILL_TOKENS
        while done < end:
            until = min(end, (done // step + 1) * step)
            started = time.perf_counter()
            self._model(mx.array(tokens[done:until])[None], cache=cache)
            mx.eval([c.state for c in cache])
            pairs = (until - done) * (until + done + 1) // 2
            self._steps.append([until - done, pairs, int((time.perf_counter() - started) * 1e6)])
            done = until
            self._keep(link, hashes[: done // _TOKENS], kinds.leaves_of(cache), done)
            log.info("tierKV: prompt processing progress: %d/%d", done, len(tokens))
        return done

    def keep(self, tokens: Sequence[int], cache: list[Any], extras: Iterable[Extra] = ()) -> int:
        """Save the new blocks of a cache that has seen `tokens`; give how many were handed over.

        Waits for slots at most `MLX_SLOT_WAIT_S` at a time; the rest is dropped and counted.
        """
        seen = kinds.tokens_in(cache)
        covered = len(tokens) if seen is None else min(seen, len(tokens))
        # mlx-lm computes one token ahead, so states may cover more than `tokens`.
        if self.needs_boundaries and (seen != len(tokens) or covered % _TOKENS):
            return 0
        return self.keep_states(tokens[:covered], cache, cache, covered, extras)

    def keep_states(
        self,
        tokens: Sequence[int],
        cache: list[Any],
        states: list[Any],
        end: int,
        extras: Iterable[Extra] = (),
    ) -> int:
        """Save rows of `cache` up to `end` tokens, with the states and windows of `states` at that point."""
        link = self._ready_link()
        hashes = chunk_hashes(tokens[:end], extras)
        if link is None or not hashes:
            return 0
        rows, whole = kinds.leaves_of(cache), kinds.leaves_of(states)
        of_rows = {place for group in self._groups if group.rows for place in group.leaves}
        leaves = [rows[at] if at in of_rows else whole[at] for at in range(len(rows))]
        return self._keep(link, hashes, leaves, end)

    def _keep(self, link: Link, hashes: list[bytes], leaves: list[Any], end: int) -> int:
        name = link.name()
        if not name:
            return 0
        kept = 0
        try:
            for at in range(len(hashes)):
                is_end = (at + 1) * _TOKENS == end
                wanted = [g for g in self._groups if g.rows or is_end]
                wanted = [g for g in wanted if (g.index, hashes[at]) not in self._known]
                saves = self._fill(link, wanted, leaves, hashes, at)
                if saves:
                    link.save(name, saves)
                kept += len(saves)
                if len(saves) < len(wanted):
                    link.counters.add("dropped_save_no_slot", len(hashes) - at)
                    break
        except kinds.ChangedShapeError as error:
            link.counters.add("dropped_save_other_shape")
            log.debug("tierKV: a cache is not saved: %s", error)
        except Exception as error:  # the engine computes on without us
            log.exception("tierKV: a save failed")
            self._refuse(f"an error ({error!r})")
        return kept

    def _fill(
        self, link: Link, groups: list[Group], leaves: list[Any], hashes: list[bytes], at: int
    ) -> list[Save]:
        """Fill slots with one chunk of each group; fewer where no slot is free."""
        saves: list[Save] = []
        for group in groups:
            taken = link.take(limits.MLX_SLOT_WAIT_S)
            if taken is None:
                break
            try:
                room = np.frombuffer(taken.view, np.uint8)[: group.block_bytes]
                kinds.fill(group, leaves, (at + 1) * _TOKENS, room)
            except BaseException:
                link.give_back(taken)
                raise
            anchor = hashes[at - at % limits.RUN_BLOCKS]
            parent = hashes[at - 1] if at else _NO_PARENT
            named = (group.index, hashes[at], parent, (at + 1) * _TOKENS, anchor)
            saves.append(Save(taken, *named))
            self._remember(group.index, hashes[at])
            link.counters.add("bytes_offered", group.block_bytes)
        return saves

    def _learn(self, plan: Plan, hashes: list[bytes]) -> None:
        """Remember the blocks that vaults hold, so that only others are offered."""
        for group in self._groups:
            for at, block in enumerate(hashes):
                if plan.is_held(group.index, at):
                    self._remember(group.index, block)
                else:
                    self._known.pop((group.index, block), None)

    def _remember(self, group: int, block: bytes) -> None:
        self._known[group, block] = None
        if len(self._known) > limits.MLX_KNOWN_BLOCKS_MAX:
            self._known.popitem(last=False)

    def _ready_link(self) -> Link | None:
        if self._naming is not None:
            self._naming.check()
        return None if self.refused else self._link

    def _report(self) -> Frame:
        """Give new progress of naming and new step times; from the helper thread."""
        report = {} if self._naming is None else self._naming.report()
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        return {**report, "steps": steps} if steps else report

    def _refuse(self, why: str) -> None:
        self._off = why
        log.warning("tierKV: off for this model: %s; it computes on without tierKV", why)
