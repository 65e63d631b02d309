"""The contract probe: what the shim relies on in vLLM, held against the release that is running."""

import inspect
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from vllm.v1 import kv_cache_interface
from vllm.v1.core.sched.output import SchedulerOutput

from tierkv.connectors.vllm import compat
from tierkv.connectors.vllm.compat import KVConnectorBase_V1, SupportsHMA

#: Methods vLLM calls on us, with the parameters we rely on. Any of them absent: that part of the shim is never called.
USED: Final[dict[str, tuple[str, ...]]] = {
    "register_kv_caches": ("kv_caches",),
    "get_handshake_metadata": (),
    "set_xfer_handshake_metadata_pp_aware": ("metadata",),
    "handle_preemptions": ("kv_connector_metadata",),
    "start_load_kv": ("forward_context",),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata"),
    "wait_for_save": (),
    "get_finished": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "build_connector_worker_meta": (),
    "bind_gpu_block_pool": ("gpu_block_pool",),
    "on_new_request": ("request",),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "has_pending_push_work": (),
    "reset_cache": (),
    "get_kv_connector_stats": (),
    "build_kv_connector_stats": ("data",),
    "build_prom_metrics": (
        "vllm_config",
        "metric_types",
        "labelnames",
        "per_engine_labelvalues",
    ),
    "shutdown": (),
    "take_events": (),
}
#: The same of methods that only newer releases call: their absence costs what they bring, and nothing else.
LATER: Final[dict[str, tuple[str, ...]]] = {
    "get_external_cache_hit_sources": ("request", "num_external_tokens"),
    "restore_kv_caches": (),
    "supports_sleep_mode": ("kv_transfer_config",),
    "unregister_kv_caches": (),
}
#: Methods some release has beside those: what they do by default suits us, or `FEATURES` names the one we use.
KNOWN: Final = frozenset(
    {
        "bind_connector_metadata",
        "bind_kv_cache_manager",
        "clear_connector_metadata",
        "finish_forward",
        "get_finished_count",
        "get_kv_connector_kv_cache_events",
        "get_loaded_kv_cache_group_ids",
        "get_mem_pool_context",
        "get_required_kvcache_layout",
        "get_transfer_results",
        "has_connector_metadata",
        "has_pending_block_frees",
        "prefer_cross_layer_blocks",
        "register_cross_layers_kv_cache",
        "register_finished_partial_tail",
        "requires_kv_delivery",
        "requires_piecewise_for_cudagraph",
        "reset_capture_state",
        "role",
        "set_host_xfer_buffer_ops",
        "set_xfer_handshake_metadata",
        "supports_divergent_local_hybrid_hits",
    }
)


@dataclass(frozen=True)
class Report:
    """`missing`: what we use and this release lacks; `unknown`: methods no tested release has; `features`: by name."""

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    features: dict[str, bool]

    def __str__(self) -> str:
        absent = ", ".join(name for name, has in self.features.items() if not has) or "nothing"
        return (
            f"missing of what it uses: {', '.join(self.missing) or 'nothing'}; "
            f"methods it does not know: {', '.join(self.unknown) or 'none'}; features absent: {absent}"
        )


def probe() -> Report:
    """Compare the running release with what the shim was written for; reads signatures only."""
    missing = [problem for name, wanted in USED.items() for problem in _lacks(name, wanted)]
    later = {name: wanted for name, wanted in LATER.items() if hasattr(KVConnectorBase_V1, name)}
    missing += [problem for name, wanted in later.items() for problem in _lacks(name, wanted)]
    if not hasattr(SupportsHMA, "request_finished_all_groups"):
        missing.append("request_finished_all_groups")
    public = {name for name in vars(KVConnectorBase_V1) if not name.startswith("_")}
    return Report(tuple(missing), tuple(sorted(public - {*USED, *LATER} - KNOWN)), _features())


def _lacks(name: str, wanted: tuple[str, ...]) -> list[str]:
    method = getattr(KVConnectorBase_V1, name, None)
    if method is None:
        return [name]
    known = inspect.signature(method).parameters
    return [f"{name}({parameter})" for parameter in wanted if parameter not in known]


def _features() -> dict[str, bool]:
    """Each of them is a branch in `compat`."""
    return {
        "block tables in the step's output": "kv_connector_block_state" in _fields(SchedulerOutput),
        "states handed over at boundaries": compat.hands_off_states(),
        "failed loads reported by request": compat.fails_requests(),
        "block frees waited for": hasattr(KVConnectorBase_V1, "has_pending_block_frees"),
        "groups named that take part": hasattr(
            kv_cache_interface.KVCacheConfig, "prefix_cacheable_group_ids"
        ),
        "shards named by spec": "max_tp_shards" in _fields(kv_cache_interface.AttentionSpec),
        "the same root hash at every start": compat.has_fixed_hash_root(),
    }


def _fields(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)} if is_dataclass(kind) else set()
