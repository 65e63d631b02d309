"""`TierKVStorage`: HiCache storage (`--hicache-storage-backend dynamic`) that keeps SGLang's pages in vaults."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from sglang.srt.runtime_context import get_context

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.link import Asked, Link, Plan, Save, Slot
from tierkv.connectors.vllm.link.settings import Settings, load_settings
from tierkv.sglang import plugin
from tierkv.sglang.generation import CURRENT, Generation
from tierkv.sglang.naming import Naming, software
from tierkv.sglang.pages import HostPages, RefusedPoolError

log = logging.getLogger("tierkv.shim")

_CONFIG: Final = "--hicache-storage-backend-extra-config"
#: Keys of that option: those that SGLang reads, and ours.
_SGLANG_KEYS: Final = (
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "file_storage_path",
)
_OWN_KEYS: Final = ("config_path", "socket", "autostart")
_GROUP: Final = 0
_NO_PARENT: Final = bytes(32)


@dataclass
class _Open:
    """A look-up whose pages SGLang may read: `places` of its hashes, up to index `end`, until `until_s`."""

    plan: Plan
    places: Mapping[bytes, int]
    end: int
    until_s: float


class TierKVStorage(HiCacheStorage):
    """One for each rank. HiCache calls it from a thread each for look-ups, reads and writes; no call raises or hangs.

    Raises ValueError or RuntimeError at start, naming key, value and fix.
    """

    def __init__(self, storage_config: Any, _kwargs: Mapping[str, Any]) -> None:
        """`storage_config`: SGLang's `HiCacheStorageConfig`."""
        unhooked = plugin.missing()
        if unhooked:
            raise RuntimeError(
                f"tierKV's plug-in does not watch {', '.join(unhooked)}, so changed weights would go unseen; install "
                "tierkv into SGLang's environment with pip, and name tierkv in SGLANG_PLUGINS where that is set"
            )
        _log_like_sglang()
        self._config = storage_config
        self._args = get_context().resolved_server_args_dict()
        self._settings = _settings(storage_config.extra_config or {})
        _check_prefix_keys(self._args)
        self._generation: Generation = CURRENT
        self._number = self._generation.number
        self._renewing = threading.Lock()
        self._counters = Counters()
        self._others: list[str] = []
        self._is_registered = False
        self._off = ""
        self._pages: HostPages | None = None
        self._naming: Naming | None = None
        self._link: Link | None = None
        self._tokens = 0
        self._open: list[_Open] = []
        self._open_lock = threading.Lock()

    # --- pools --------------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pages = HostPages(mem_pool_host)
        self._tokens = self._pages.geometry.tokens

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool is self.mem_pool_host:
            return
        self._others.append(str(host_pool_name))
        if self._is_registered:
            self._turn_off(f"host pool {host_pool_name} came later")

    def on_host_pools_registered(self) -> None:
        """Connect; raises RefusedPoolError for a model with more than one pool."""
        if self._others:
            raise RefusedPoolError(
                f"host pools {', '.join(sorted(self._others))}: TierKVStorage carries models whose pages are all of "
                "attention or MLA; sliding windows, recurrent states, indexers and drafts are not carried yet. Start "
                "SGLang without --hicache-storage-backend for this model"
            )
        if self._args.get("enable_unified_cache_external_linker"):
            raise RefusedPoolError(
                "--enable-unified-cache-external-linker: a linker aborts requests whose load fails; leave it out"
            )
        self._is_registered = True
        assert self._pages is not None
        geometry, config = self._pages.geometry, self._config
        ranks = {
            "pp": config.pp_rank,
            "pp_size": config.pp_size,
            "cp": config.attn_cp_rank,
            "cp_size": config.attn_cp_size,
            "tp_size": config.tp_size,
        }
        # Ranks of MLA hold equal pages, and the first one saves them.
        if not config.is_mla_model:
            ranks["tp"] = config.tp_rank
        identity = self._settings.identity
        self._naming = Naming(
            self._args, ranks, geometry, self._generation, self._counters, identity=identity
        )
        self._link = Link(
            self._settings,
            software(),
            self._register(geometry.registration()),
            engine=f"sglang-{uuid.uuid4()}",
            kind="sglang",
            counters=self._counters,
            name=self._naming.name,
            identity=self._naming.identity,
            reports=self._report,
            opened=self._hear_open,
            decided=lambda _frame: None,
        )
        self._link.start()

    def _register(self, group: Frame) -> Frame:
        pool, args = self.mem_pool_host, self._args
        longest = min(int(args.get("context_length") or pool.size), int(pool.size))
        step = int(args.get("chunked_prefill_size") or 0)
        return {
            "t": "register",
            "model": str(self._config.model_name or args["model_path"]),
            "max_model_len": longest,
            "step_tokens": step if 0 < step < longest else longest,
            "kv_blocks": int(pool.page_num),
            "groups": [group],
        }

    def _hear_open(self) -> None:
        assert self._naming is not None
        self._naming.forget()
        self._naming.start()

    def _report(self) -> Frame:
        """Give new fields of `counts`, once a second from the helper thread."""
        assert self._naming is not None
        self._sweep()
        return self._naming.report()

    # --- look-up, read, write --------------------------------------------------------------------------

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Give how many of `keys` can be read, from the first on; their fetch begins."""
        return self._counted("a look-up", lambda: self._look_up(keys, extra_info))

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Fill the host's pages; True for those filled, which are the first ones."""
        done = self._counted("a read", lambda: self._read(keys, host_indices, extra_info))
        return [at < done for at in range(len(keys))]

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Copy the host's pages into slots; True for those handed over, which are the first ones."""
        done = self._counted("a write", lambda: self._write(keys, host_indices, extra_info))
        return [at < done for at in range(len(keys))]

    def _counted(self, what: str, call: Callable[[], int]) -> int:
        """Give the pages of a call; if it raises 0, and the engine computes on without us."""
        try:
            return call()
        except Exception as error:
            log.exception("tierKV: %s failed", what)
            self._turn_off(f"{what} failed ({error!r})")
            return 0

    def _look_up(self, keys: list[str], extra_info: Any) -> int:
        self._sweep()
        number, link = self._ready()
        if link is None or not keys:
            return 0
        hashes, start = self._chain(keys, extra_info)
        plan = link.begin(
            [Asked(_GROUP, "kv", hashes)], start, f"sglang-{keys[-1][:16]}", is_waiting=False
        )
        if plan is None:
            return 0
        if not link.wait(lambda: plan.held or plan.reason, limits.SGLANG_LOOKUP_S):
            link.suspect()
            self._counters.add("misses_no_answer")
        fetched = plan.tokens // self._tokens
        count = next(
            (at for at in range(start, len(hashes)) if not plan.is_held(_GROUP, at)), len(hashes)
        )
        count = min(count, fetched) - start
        if count <= 0 or number != self._generation.number:
            if plan.reason:
                self._counters.add(f"misses_{plan.reason}")
            link.release(plan, 0, 0.0)
            return 0
        places = {block: at for at, block in enumerate(hashes[: start + count])}
        until_s = time.monotonic() + limits.SGLANG_PLAN_KEPT_S
        with self._open_lock:
            self._open.append(_Open(plan, places, start + count, until_s))
        return count

    def _read(self, keys: list[str], host_indices: Any, extra_info: Any) -> int:
        self._sweep()
        number, link = self._ready()
        if link is None or not keys:
            return 0
        hashes, start = self._chain(keys, extra_info)
        one = self._opened(link, hashes, start)
        if one is None:
            return 0
        started = time.perf_counter()
        done = self._copy(link, one, hashes[start:], host_indices.tolist())
        # Slots of a plan that ended meanwhile may have been filled anew while they were read. Pages are noted before
        # the generation is compared, so that a change of weights after this line sees them.
        self._generation.note_pages()
        if not one.plan.slots or number != self._generation.number:
            self._counters.add("misses_plan_ended")
            done = 0
        assert self._pages is not None
        self._counters.add("blocks_loaded", done)
        self._counters.add("bytes_loaded", done * self._pages.geometry.page_bytes)
        self._counters.add("tokens_restored", done * self._tokens)
        at = one.places.get(hashes[start], start)
        if done < len(keys) or at + done >= one.end:
            self._forget(one)
            tokens = done * self._tokens
            link.release(one.plan, tokens, time.perf_counter() - started)
        return done

    def _copy(self, link: Link, one: _Open, hashes: Sequence[bytes], indices: Sequence[int]) -> int:
        """Copy pages as they are placed; give how many, up to the first that is not."""
        assert self._pages is not None
        plan = one.plan
        link.press(plan)
        late_s = time.monotonic() + limits.SGLANG_READ_S
        for number, block in enumerate(hashes):
            at = one.places.get(block)
            if at is None:
                return number
            patience_s = min(limits.SGLANG_STALL_S, late_s - time.monotonic())
            views = self._placed(link, plan, at, patience_s)
            if views is None:
                self._counters.add(f"misses_{plan.reason or 'no_answer'}")
                return number
            self._pages.load(indices[number * self._tokens], views[0])
        return len(hashes)

    def _placed(
        self, link: Link, plan: Plan, at: int, patience_s: float
    ) -> list[memoryview] | None:
        one = range(at, at + 1)
        views = link.read(plan, _GROUP, one)
        if views is None and not plan.reason:
            if not link.wait(lambda: plan.reason or at in plan.slots.get(_GROUP, {}), patience_s):
                link.suspect()
            views = link.read(plan, _GROUP, one)
        return views

    def _write(self, keys: list[str], host_indices: Any, extra_info: Any) -> int:
        number, link = self._ready()
        name = b"" if link is None else link.name()
        if link is None or not name or not keys:
            self._counters.add("dropped_save_not_named", len(keys))
            return 0
        hashes, start = self._chain(keys, extra_info)
        indices, done = host_indices.tolist(), 0
        late_s = time.monotonic() + limits.SGLANG_WRITE_S
        while done < len(keys):
            some = range(done, min(done + limits.SGLANG_SAVE_PAGES, len(keys)))
            pages = [(start + at, indices[at * self._tokens]) for at in some]
            saves = self._fill(link, hashes, pages, late_s)
            if number != self._generation.number:
                for save in saves:
                    link.give_back(save.slot)
                break
            if saves:
                link.save(name, saves)
            done += len(saves)
            if len(saves) < len(some):
                self._counters.add("dropped_save_no_slot", len(keys) - done)
                break
        return done

    def _fill(
        self,
        link: Link,
        hashes: Sequence[bytes],
        pages: Sequence[tuple[int, int]],
        late_s: float,
    ) -> list[Save]:
        """Copy pages, each by its place in the prompt and index in the pool; fewer where no slot is free in time."""
        assert self._pages is not None
        saves: list[Save] = []
        for at, index in pages:
            slot = link.take(max(0.0, late_s - time.monotonic()))
            if slot is None:
                break
            self._save(link, slot, index)
            anchor = hashes[at - at % limits.RUN_BLOCKS]
            parent = hashes[at - 1] if at else _NO_PARENT
            saves.append(Save(slot, _GROUP, hashes[at], parent, (at + 1) * self._tokens, anchor))
            self._counters.add("bytes_offered", self._pages.geometry.page_bytes)
        return saves

    def _save(self, link: Link, slot: Slot, index: int) -> None:
        assert self._pages is not None
        try:
            self._pages.save(index, slot.view)
        except BaseException:
            link.give_back(slot)
            raise

    # --- plans ----------------------------------------------------------------------------------------

    def _opened(self, link: Link, hashes: Sequence[bytes], start: int) -> _Open | None:
        """Give the look-up that has a page already; a new one where none has."""
        first = hashes[start]
        with self._open_lock:
            for one in reversed(self._open):
                if first in one.places and one.plan.reason != "closed":
                    one.until_s = time.monotonic() + limits.SGLANG_PLAN_KEPT_S
                    return one
        plan = link.begin([Asked(_GROUP, "kv", hashes)], start, f"sglang-{first.hex()[:16]}")
        if plan is None:
            return None
        places = {block: at for at, block in enumerate(hashes)}
        one = _Open(plan, places, len(hashes), time.monotonic() + limits.SGLANG_PLAN_KEPT_S)
        with self._open_lock:
            self._open.append(one)
        return one

    def _forget(self, one: _Open) -> None:
        with self._open_lock:
            if one in self._open:
                self._open.remove(one)

    def _sweep(self) -> None:
        """End look-ups that nobody has read for a while."""
        now, link = time.monotonic(), self._link
        with self._open_lock:
            many = max(0, len(self._open) - limits.SGLANG_PLANS_MAX)
            late = [one for at, one in enumerate(self._open) if at < many or one.until_s < now]
            self._open = [one for one in self._open if one not in late]
        for one in late:
            self._counters.add("plans_expired")
            if link is not None:
                link.release(one.plan, 0, 0.0)

    def _ready(self) -> tuple[int, Link | None]:
        """Give the generation's number, and the link where there is a name; names another generation first."""
        number, link = self._generation.number, self._link
        if link is None or self._naming is None or self._off or self._generation.is_mixed:
            return number, None
        with self._renewing:
            if number != self._number:
                self._naming.renew()
                link.renew()
                self._number = number
                log.warning("tierKV: weights were changed: another generation begins")
        return number, link

    def _chain(self, keys: Sequence[str], extra_info: Any) -> tuple[list[bytes], int]:
        """Give the hashes of all pages from the prompt's first on, and the index of the first key."""
        # HiCache writes None for no pages.
        prefix = (None if extra_info is None else extra_info.prefix_keys) or []
        most = max(0, limits.PLAN_HASHES_MAX - len(prefix))
        return [bytes.fromhex(key) for key in (*prefix, *keys[:most])], len(prefix)

    # --- the rest ----------------------------------------------------------------------------------------

    def get_stats(self) -> None:
        """SGLang asks thousands of times a second; the counters are in `tierkv status` and the sidecar's metrics."""

    def clear(self) -> None:
        """Do nothing: vaults are shared, and `tierkv flush` empties them."""
        log.warning("tierKV: SGLang asked to clear its storage; `tierkv flush` empties the vaults")

    def close(self) -> None:
        """End the connection. SGLang calls it when the storage is detached."""
        if self._link is not None:
            self._link.close()
        if self._naming is not None:
            self._naming.close()

    def get(self, *_args: Any, **_kwargs: Any) -> None:
        """Give nothing: pages are read by `batch_get_v1`."""

    def batch_get(self, keys: list[str], *_args: Any, **_kwargs: Any) -> list[None]:
        """Give nothing: pages are read by `batch_get_v1`."""
        return [None] * len(keys)

    def set(self, *_args: Any, **_kwargs: Any) -> bool:
        """Store nothing: pages are written by `batch_set_v1`."""
        return False

    def batch_set(self, *_args: Any, **_kwargs: Any) -> bool:
        """Store nothing: pages are written by `batch_set_v1`."""
        return False

    def exists(self, *_args: Any, **_kwargs: Any) -> bool:
        """Know nothing of a page alone: `batch_exists` is told its place in the prompt."""
        return False

    def _turn_off(self, why: str) -> None:
        if not self._off:
            self._off = why
            self._counters.add("turned_off")
            log.error(
                "tierKV: off until SGLang is restarted: %s; it computes on without tierKV", why
            )


def _settings(given: Mapping[str, Any]) -> Settings:
    unknown = sorted(set(given) - {*_SGLANG_KEYS, *_OWN_KEYS})
    if unknown:
        raise ValueError(
            f"{_CONFIG}: unknown key {unknown[0]!r}; TierKVStorage knows {', '.join(_OWN_KEYS)}"
        )
    if not given.get("interface_v1"):
        raise ValueError(f'{_CONFIG}: interface_v1 is not set; add "interface_v1": 1')
    try:
        return load_settings({name: given[name] for name in _OWN_KEYS if name in given})
    except ValueError as error:
        raise ValueError(str(error).replace("kv_connector_extra_config", _CONFIG)) from None


def _check_prefix_keys(args: Mapping[str, Any]) -> None:
    if args.get("hicache_storage_backend") != "dynamic":
        return  # attached to a running server: the first call shows it
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (  # noqa: PLC0415 - slow to import
        HybridCacheController,
    )

    text = args.get("hicache_storage_backend_extra_config")
    *_, passes = HybridCacheController.parse_storage_backend_extra_config(text)
    if not passes:
        raise ValueError(
            f"{_CONFIG}: hicache_storage_pass_prefix_keys is not true, so a page's place in its prompt is not known; "
            'add "hicache_storage_pass_prefix_keys": true'
        )


def _log_like_sglang() -> None:
    """Let our messages reach SGLang's log, whose handler is the root's."""
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
