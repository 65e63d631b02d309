"""`TierKVConnector`, the class vLLM loads by `--kv-transfer-config`; it only delegates."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tierkv.connectors.vllm.api import compat, contract
from tierkv.connectors.vllm.api.compat import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from tierkv.connectors.vllm.api.metadata import Introduction, StepMetadata, StepReceipts
from tierkv.connectors.vllm.engine.metrics import TierKVPromMetrics, TierKVStats
from tierkv.connectors.vllm.engine.scheduler import Match, SchedulerShim
from tierkv.connectors.vllm.engine.worker import WorkerShim
from tierkv.connectors.vllm.link import failpoint
from tierkv.connectors.vllm.link.guard import guarded
from tierkv.connectors.vllm.link.settings import load_settings
from tierkv.connectors.vllm.pages import amx, replicas
from tierkv.connectors.vllm.pages.specs import read_groups

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

log = logging.getLogger("tierkv.shim")

#: Whether a request's blocks stay ours, and the `kv_transfer_params` of its answer.
Finish = tuple[bool, dict[str, Any] | None]


def _as_finished(received: set[str], failed: set[str]) -> tuple[set[str] | None, set[str] | None]:
    """Report loads in the form of releases before 0.30; the first part is None because nothing is ever sent."""
    return None, (received | failed) or None


class TierKVConnector(KVConnectorBase_V1, SupportsHMA):
    """A KV connector (vLLM `distributed/kv_transfer/kv_connector/v1/base.py`) backed by the local sidecar.

    Raises ValueError at start, naming key, value and fix, for a configuration or a model it cannot carry. After
    that it never raises and never waits: without a sidecar the engine runs as if no connector were there, and after
    an error of its own (guard.py) it is off, with what vLLM was promised reported as failed.
    """

    half: SchedulerShim | WorkerShim

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        log_like_vllm()
        if not compat.check_release(compat.vllm_version()):
            log.warning("tierKV: differences to the known vLLM: %s", contract.probe(type(self)))
        armed = failpoint.arm(os.environ.get(failpoint.VARIABLE))
        settings = load_settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
        groups = read_groups(vllm_config, kv_cache_config, settings.states)
        if compat.schedules_per_rank(vllm_config):
            log.warning(
                "tierKV: nothing is restored or saved with distributed_executor_backend=external_launcher: every "
                "rank has a scheduler of its own, and restores come to each at another time, so that they would "
                "plan different steps; use another executor (mp or ray)"
            )
            groups = []
        same = replicas.copies(vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            is_changed = compat.set_recompute_policy(vllm_config)
            compat.publish_over_ipv6(vllm_config)
            log.info(
                "tierKV: on, with the sidecar at %s (%s)%s; `tierkv status` shows what it does",
                settings.socket,
                settings.source,
                "; kv_load_failure_policy is now 'recompute', so lost blocks fail no request"
                if is_changed
                else "",
            )
            self.half = self.scheduler_side = SchedulerShim(
                vllm_config, settings, groups, kv_cache_config, copies=same
            )
        else:
            blocks = kv_cache_config.num_blocks
            self.half = self.worker_side = WorkerShim(
                vllm_config, settings, groups, blocks, copies=same
            )
            amx.ask_kernel()
            above = compat.worker_above()
            self.worker_side.weights.install(above)
            compat.after_warm_up(above, self.worker_side.warmed_up)
        self.half.counters.add("failpoints_armed", armed)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache may lose a block: preempted requests need not wait for us (0.28)."""
        return False

    @guarded(is_vital=False)
    def get_kv_connector_stats(self) -> TierKVStats | None:
        """Give this half's counts since the last call; None without any."""
        times = self.half.restore_times.take()
        events = self.half.counters.take_changes("vllm")
        return TierKVStats.of(events, times) if events or times else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TierKVStats:
        return TierKVStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TierKVPromMetrics:
        return TierKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """Say that sleeping is safe: no page is registered with anybody, and none is touched meanwhile (0.33)."""
        del kv_transfer_config
        return True

    # --- scheduler side -------------------------------------------------------------------

    @guarded()
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.scheduler_side.bind_gpu_block_pool(gpu_block_pool)

    @guarded()
    def on_new_request(self, request: Any) -> None:
        self.scheduler_side.on_new_request(request)

    @guarded()
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Match:
        return self.scheduler_side.get_num_new_matched_tokens(request, num_computed_tokens)

    @guarded(is_vital=False)
    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[Any, int]:
        """From 0.32 on."""
        return self.scheduler_side.hit_sources(request, num_external_tokens)

    @guarded(lambda self, *given: self.scheduler_side.owed.alloc(*given))
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.scheduler_side.update_state_after_alloc(request, blocks, num_external_tokens)

    @guarded(lambda self, scheduler_output: self.scheduler_side.owed.step(scheduler_output))
    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        metadata = self.scheduler_side.build_connector_meta(scheduler_output)
        if metadata.saves or metadata.loads:
            self.scheduler_side.hand_over()
        return metadata

    @guarded(lambda self, connector_output: self.scheduler_side.owed.output(connector_output))
    def update_connector_output(self, connector_output: Any) -> None:
        if (
            connector_output.finished_recving
            or connector_output.kv_connector_worker_meta is not None
        ):
            self.scheduler_side.update_connector_output(connector_output)

    @guarded(lambda self, request, _ids: self.scheduler_side.owed.finished(request))
    def request_finished(self, request: Any, block_ids: Any) -> Finish:
        """Never keep a request's blocks: saves hold references of their own."""
        del block_ids
        return False, self.scheduler_side.request_finished(request)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Finish:
        return self.request_finished(request, block_ids)

    @guarded(is_vital=False)
    def take_events(self) -> Sequence[Any]:
        events = self.scheduler_side.events
        return events.take() if events.is_on else ()

    @guarded(is_vital=False)
    def has_pending_push_work(self) -> bool:
        return self.scheduler_side.has_pending_work()

    @guarded(is_vital=False)
    def has_pending_block_frees(self) -> bool:
        """From 0.30 on."""
        return self.scheduler_side.has_pending_block_frees()

    @guarded()
    def reset_cache(self) -> bool:
        return self.scheduler_side.reset_cache()

    @guarded(is_vital=False)
    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Any]) -> None:
        """Take the workers' handshake; beside other connectors it may be another's."""
        ours = [item for item in metadata.values() if isinstance(item, Introduction)]
        self.scheduler_side.introduce({item.rank: item.resolved for item in ours})

    # --- worker side -------------------------------------------------------------------

    @property
    def _metadata(self) -> StepMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata

    @guarded(lets_through=(ValueError,))
    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        self.worker_side.register_kv_caches(kv_caches)

    @guarded()
    def unregister_kv_caches(self) -> None:
        """From 0.33 on."""
        self.worker_side.sleep(is_asleep=True)

    @guarded()
    def restore_kv_caches(self) -> None:
        """From 0.33 on."""
        self.worker_side.sleep(is_asleep=False)

    def _bind_owed(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker_side.confirm()

    @guarded(_bind_owed)
    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker_side.begin_step(connector_metadata)

    @guarded(is_vital=False)
    def get_handshake_metadata(self) -> Introduction | None:
        """Introduce this rank; beside other connectors the first step's receipts do so."""
        return self.worker_side.introduce() if compat.is_alone(self) else None

    @guarded()
    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self.worker_side.handle_preemptions(kv_connector_metadata)

    @guarded(lambda self, *_context, **_more: self.worker_side.owe_step(self._metadata))
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        del forward_context, kwargs
        metadata = self.worker_side.step
        if metadata.loads or not metadata.has_forward:
            self.worker_side.start_load_kv(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous and whole before a forward uses them: no layer ever waits."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Blocks are saved whole after the forward: nothing happens per layer."""

    @guarded(lambda self: self.worker_side.owe_saves(self._metadata))
    def wait_for_save(self) -> None:
        metadata = self.worker_side.step
        if metadata.saves or metadata.tokens or metadata.checks:
            self.worker_side.wait_for_save(metadata)

    def _take_finished(self) -> tuple[set[str], set[str]]:
        worker = self.worker_side
        return worker.take_finished() if worker.has_transfers else (set(), set())

    @guarded(lambda self, _ids: _as_finished(*self.worker_side.arrivals.take_again()))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        del finished_req_ids
        return _as_finished(*self._take_finished())

    @guarded(lambda self: self.worker_side.arrivals.take_blocks_again())
    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker_side.arrivals.take_failed_blocks()

    @guarded(lambda self, _ids: compat.transfer_results(*self.worker_side.arrivals.take_again()))
    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """From 0.30 on."""
        del finished_req_ids
        return compat.transfer_results(*self._take_finished())

    @guarded(lambda self: self.worker_side.owed_receipts())
    def build_connector_worker_meta(self) -> StepReceipts | None:
        return self.worker_side.take_receipts()

    @guarded(is_vital=False)
    def shutdown(self) -> None:
        self.half.shutdown()


def log_like_vllm() -> None:
    """Let our log lines appear where vLLM's do."""
    ours, theirs = logging.getLogger("tierkv"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level or logging.INFO)
        ours.propagate = False
