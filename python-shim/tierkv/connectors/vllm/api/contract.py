"""The contract probe: compares what the shim relies on in vLLM with the running release."""

import inspect
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from vllm.v1 import kv_cache_interface
from vllm.v1.core.sched.output import SchedulerOutput

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.compat import KVConnectorBase_V1, SupportsHMA

#: Connector methods that only newer releases call; older ones lack just their features.
LATER: Final = frozenset(
    {
        "get_external_cache_hit_sources",
        "restore_kv_caches",
        "supports_sleep_mode",
        "unregister_kv_caches",
    }
)
#: vLLM methods that the connector leaves at their defaults.
KNOWN: Final = frozenset(
    {
        "bind_kv_cache_manager",
        "clear_connector_metadata",
        "finish_forward",
        "get_finished_count",
        "get_kv_connector_kv_cache_events",
        "get_loaded_kv_cache_group_ids",
        "get_mem_pool_context",
        "get_required_kvcache_layout",
        "has_connector_metadata",
        "prefer_cross_layer_blocks",
        "register_cross_layers_kv_cache",
        "register_finished_partial_tail",
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
    """`missing`: used here, absent in this release; `unknown`: methods no tested release has; `features`: by name."""

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    features: dict[str, bool]

    def __str__(self) -> str:
        absent = ", ".join(name for name, has in self.features.items() if not has) or "nothing"
        return (
            f"missing of what it uses: {', '.join(self.missing) or 'nothing'}; "
            f"methods it does not know: {', '.join(self.unknown) or 'none'}; features absent: {absent}"
        )


def public(connector: type) -> set[str]:
    """Name the methods of a connector that vLLM calls, or has."""
    return {name for name in vars(connector) if not name.startswith("_")}


def probe(connector: type) -> Report:
    """Compare the running release with our connector's methods and their parameters; reads signatures only."""
    ours = public(connector)
    used = {name for name in ours if name not in LATER or hasattr(KVConnectorBase_V1, name)}
    missing = [problem for name in sorted(used) for problem in _lacks(connector, name)]
    unknown = public(KVConnectorBase_V1) - ours - KNOWN
    return Report(tuple(missing), tuple(sorted(unknown)), _features())


def _lacks(connector: type, name: str) -> list[str]:
    owner = SupportsHMA if name == "request_finished_all_groups" else KVConnectorBase_V1
    if not hasattr(owner, name):
        return [name]
    known = _parameters(owner, name)
    return [f"{name}({wanted})" for wanted in _parameters(connector, name) if wanted not in known]


def _parameters(owner: type, name: str) -> list[str]:
    """Give the names that a method takes; none of a property."""
    method = inspect.getattr_static(owner, name)
    method = method.__func__ if isinstance(method, classmethod) else method
    found = inspect.signature(method).parameters.values() if callable(method) else ()
    return [one.name for one in found if one.kind is not one.VAR_KEYWORD]


def _features() -> dict[str, bool]:
    """Tell which features are there; each is a branch in `compat`."""
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
