"""`TierKVOffloadingConnector`: vLLM's own offloading, whose workers also report their configuration to `TierKVTier`."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.compat import KVConnectorRole
from tierkv.connectors.vllm.api.metadata import Introduction
from tierkv.connectors.vllm.api.resolved import resolve
from tierkv.connectors.vllm.connector import log_like_vllm
from tierkv.connectors.vllm.naming import namespace
from tierkv.connectors.vllm.naming.hello import register_frame
from tierkv.connectors.vllm.naming.naming import Naming
from tierkv.connectors.vllm.naming.weights import Weights
from tierkv.connectors.vllm.naming.weightwatch import WeightWatch
from tierkv.connectors.vllm.offloading.tier import TierKVTier
from tierkv.connectors.vllm.pages.grid import Grid
from tierkv.connectors.vllm.pages.probe import kernels
from tierkv.connectors.vllm.pages.specs import Group, read_groups

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

log = logging.getLogger("tierkv.shim")

#: Fields of vLLM's offloading that do not change a chunk's bytes: who runs it, and how many chunks it keeps where.
_WITHOUT_EFFECT: Final = {
    "": ("enable_kv_cache_events", "engine_id"),
    "extra_config": ("backpressure", "cpu_bytes_to_use", "eviction_policy", "secondary_tiers"),
    "parallel": (
        "data_parallel_index",
        "data_parallel_rank_local",
        "data_parallel_size",
        "rank",
    ),
}


@dataclass
class Step(OffloadingConnectorMetadata):
    """vLLM's orders of a step; `question`: number of the question whether weights changed; 0: none."""

    question: int = 0


@dataclass
class Receipts(OffloadingWorkerMetadata):
    """vLLM's receipts of a step; `answers`: by question, how many ranks have seen it; `has_changed`: weights did."""

    answers: dict[int, int] = field(default_factory=dict)
    has_changed: bool = False

    def aggregate(self, other: Any) -> "Receipts":
        both = super().aggregate(other)
        answers, has_changed = dict(self.answers), self.has_changed
        if isinstance(other, Receipts):
            has_changed = has_changed or other.has_changed
            for question, ranks in other.answers.items():
                answers[question] = answers.get(question, 0) + ranks
        return Receipts(**vars(both), answers=answers, has_changed=has_changed)


class TierKVOffloadingConnector(OffloadingConnector):
    """Experimental, as vLLM's secondary tiers are.

    Raises ValueError at start, naming key, value and fix, without a `TierKVTier`, and for a model whose
    chunks it cannot carry.
    """

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        log_like_vllm()
        compat.check_release(compat.vllm_version())
        self._config = vllm_config
        self._world = vllm_config.parallel_config.world_size
        #: Number of the last question whether weights changed, and ranks that answered it.
        self._question = self._answers = 0
        self._naming: Naming | None = None
        self._row = ""
        self._asked = 0
        if role == KVConnectorRole.SCHEDULER:
            self._tier = _tier_of(self.connector_scheduler)
            self._begin(vllm_config, kv_cache_config)
        else:
            self._watch = WeightWatch()
            self._watch.install(compat.worker_above())
            self._note_rows()

    # --- scheduler side -------------------------------------------------------------------

    def _begin(self, config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
        compat.check_hash_root()
        groups = read_groups(config, kv_cache_config)
        if not groups:
            return
        group = groups[0]
        if len(kv_cache_config.kv_cache_groups) > 1 or group.tail or group.is_state:
            raise ValueError(
                f"secondary_tiers: TierKVTier carries models of one KV-cache group with full attention, this one has "
                f"{[type(g.kv_cache_spec).__name__ for g in kv_cache_config.kv_cache_groups]}; use kv_connector "
                "'TierKVConnector'"
            )
        spec, hash_tokens = self._tier.spec, compat.hash_block_tokens(config, kv_cache_config)
        parts = namespace.ingredients(config, [group], hash_tokens)
        parts["offloading"] = _digest(
            [
                _layout(spec.config),
                self._tier.chunk_bytes,
                compat.page_format(config, kv_cache_config),
            ]
        )
        # The group whose blocks are chunks: rows of vLLM's primary tier, as they are.
        tokens = group.block_tokens * spec.blocks_per_chunk
        chunk = Group(group.index, ("chunk",), tokens, page_bytes=(self._tier.chunk_bytes,))
        chunks = max(1, kv_cache_config.num_blocks // spec.blocks_per_chunk)
        register = register_frame(config, chunks, [chunk])
        weights = Weights(config, identity=self._tier.settings.identity)
        counters = self._tier.counters
        # A chunk is opaque, and opaque pages have no lossy form.
        naming = Naming(parts, register["model"], self._world, weights, counters, order=0)
        self._naming = naming
        engine, grid = str(config.kv_transfer_config.engine_id), Grid([chunk], hash_tokens)
        self._tier.begin(register, naming, grid, engine, compat.vllm_version())

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Any]) -> None:
        """Take the workers' configurations."""
        if self._naming is None:
            return
        ours = [item for item in metadata.values() if isinstance(item, Introduction)]
        self._naming.introduce({item.rank: item.resolved for item in ours})

    def on_new_request(self, request: Any) -> None:
        """Pass the request to the tier, which will look up its chunks."""
        self._tier.hear_request(request)
        super().on_new_request(request)

    def reset_cache(self) -> bool | None:
        """Ask the workers whether their weights are still the named ones, because a change brings a reset."""
        done: bool | None = super().reset_cache()
        self._question += 1
        self._answers = 0
        self._tier.pause(is_paused=True)
        self._tier.forget()
        return done

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        orders = super().build_connector_meta(scheduler_output)
        is_open = self._answers < self._world
        return Step(**vars(orders), question=self._question if is_open else 0)

    def update_connector_output(self, connector_output: Any) -> None:
        """Note changed weights before chunks computed with them can reach the tier."""
        receipts = connector_output.kv_connector_worker_meta
        if isinstance(receipts, Receipts):
            if receipts.has_changed:
                self._tier.turn_off("weights were changed in place")
            self._answers += receipts.answers.get(self._question, 0)
            if self._answers >= self._world:
                self._tier.pause(is_paused=False)
        super().update_connector_output(connector_output)

    # --- worker side -------------------------------------------------------------------

    def _note_rows(self) -> None:
        """Digest the layout of a chunk, which vLLM passes only to its own spec."""
        spec = self.connector_worker.spec
        make = spec.get_worker

        def get_worker(caches: Any) -> Any:
            sizes = [tensor.page_size_bytes for tensor in caches.tensors]
            self._row = _digest([sizes, repr(caches.group_data_refs)])
            return make(caches)

        spec.get_worker = get_worker

    def get_handshake_metadata(self) -> Introduction:
        found = resolve(self._config)
        # Chunks are rows of the engine's own pages, whose order its kernels decide.
        parts = {**found.parts, "chunk": self._row, "pages": kernels(self._config)}
        return Introduction(self._config.parallel_config.rank, replace(found, parts=parts))

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._asked = connector_metadata.question
        self._watch.begin_step(1)

    def build_connector_worker_meta(self) -> OffloadingWorkerMetadata | None:
        """Answer the question, and report changed weights."""
        receipts = super().build_connector_worker_meta()
        has_changed, self._watch.has_news = self._watch.has_news, False
        if not self._asked and not has_changed:
            return receipts
        answers = {self._asked: 1} if self._asked else {}
        told = vars(receipts or OffloadingWorkerMetadata())
        return Receipts(**told, answers=answers, has_changed=has_changed)


def _tier_of(scheduler: Any) -> TierKVTier:
    tiers = [tier for tier in scheduler.manager.secondary_tiers if isinstance(tier, TierKVTier)]
    if len(tiers) != 1:
        raise ValueError(
            f"kv_connector_extra_config.secondary_tiers has {len(tiers)} tiers of type 'TierKVTier', "
            "TierKVOffloadingConnector needs one: "
            "{'type': 'TierKVTier', 'module_path': 'tierkv.connectors.vllm.offloading.tier'}"
        )
    return tiers[0]


def _layout(config: Any) -> dict[str, Any]:
    found = asdict(replace(config, extra_config=dict(config.extra_config)))
    for place, names in _WITHOUT_EFFECT.items():
        part = found[place] if place else found
        for name in names:
            part.pop(name, None)
    return found


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()
