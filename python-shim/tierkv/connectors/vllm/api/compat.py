"""The one place that knows how vLLM releases differ; each branch names the release and the reason."""

import logging
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm import envs
from vllm.distributed import kv_transfer
from vllm.distributed.kv_transfer.kv_connector.v1 import base as connector_base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.platforms import current_platform
from vllm.utils import hashing
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import output as sched_output
from vllm.v1.request import RequestStatus
from vllm.v1.worker.worker_base import WorkerBase

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = [
    "KVConnectorBase_V1",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorPromMetrics",
    "KVConnectorRole",
    "KVConnectorStats",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
]

log = logging.getLogger("tierkv.shim")

#: Oldest and newest release the test suite ran on.
OLDEST_RELEASE = (0, 28)
NEWEST_TESTED_RELEASE = (0, 32)


def vllm_version() -> str:
    """Give the version of the running vLLM as it names itself."""
    return str(vllm.__version__)


@cache
def software() -> str:
    """List the computing libraries and vLLM's plug-ins, each with its version."""
    plugins = {
        f"{point.dist.name} {point.dist.version}"
        for group in ("vllm.general_plugins", "vllm.platform_plugins")
        for point in metadata.entry_points(group=group)
        if point.dist is not None
    }
    names = [f"vllm {vllm_version()}", f"torch {torch.__version__}"]
    names.append(f"transformers {metadata.version('transformers')}")
    return ", ".join(names + sorted(name for name in plugins if not name.startswith("tierkv ")))


def is_alone(connector: Any) -> bool:
    """Tell whether a connector is the engine's only one: MultiConnector hands on one child's handshake to all."""
    return kv_transfer.has_kv_transfer_group() and kv_transfer.get_kv_transfer_group() is connector


def check_release(version: str) -> bool:
    """Refuse releases older than the suite ran on; warn about newer ones. Raises ValueError naming both.

    False for a release that was not tested.
    """
    parts = version.split("+", maxsplit=1)[0].split(".")
    try:
        release = (int(parts[0]), int(parts[1]))
    except (ValueError, IndexError):
        log.warning(
            "tierKV: cannot read the vLLM version %r; going on as if it were known", version
        )
        return False
    if release < OLDEST_RELEASE:
        oldest = ".".join(map(str, OLDEST_RELEASE))
        raise ValueError(
            f"vLLM {version} is older than {oldest}, the oldest release tierKV runs with; install vllm>={oldest}"
        )
    if release > NEWEST_TESTED_RELEASE:
        newest = ".".join(map(str, NEWEST_TESTED_RELEASE))
        log.warning(
            "tierKV: vLLM %s is newer than %s, the newest release tierKV was tested with",
            version,
            newest,
        )
    return release <= NEWEST_TESTED_RELEASE


def none_hash() -> bytes | None:
    """Give the root of the block-hash chain, or None before the engine core has set it.

    It is set after both constructors (v1/engine/core.py), so the namespace is computed at the first request.
    """
    value = getattr(kv_cache_utils, "NONE_HASH", None)
    return None if value is None else bytes(value)


class BlockTables:
    """The block tables of the requests in a step, one list of block ids per KV-cache group.

    From 0.29 the scheduler offers them (`SchedulerOutput.kv_connector_block_state`); 0.28 sends only new ids of
    each request, so they are added up here.
    """

    def __init__(self) -> None:
        self._tables: dict[str, list[list[int]]] = {}
        self._state: Any = None

    def hear(self, scheduler_output: Any) -> None:
        """Take one step's output; call it for every step."""
        self._state = getattr(scheduler_output, "kv_connector_block_state", None)
        if self._state is None:
            self._add_up(scheduler_output)

    def of(self, req_id: str) -> Sequence[Sequence[int]] | None:
        """Give a request's tables in this step; None for an unknown request."""
        if self._state is None:
            return self._tables.get(req_id)
        # 0.29 sends the tables themselves, later releases look them up when asked.
        snapshot: Mapping[str, Sequence[Sequence[int]]] | None
        snapshot = getattr(self._state, "block_ids", None)
        found: Sequence[Sequence[int]] | None
        found = self._state.get_block_ids(req_id) if snapshot is None else snapshot.get(req_id)
        return found

    def _add_up(self, scheduler_output: Any) -> None:
        for req_id in scheduler_output.finished_req_ids:
            self._tables.pop(req_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._tables[new.req_id] = [list(ids) for ids in new.block_ids]
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, new_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if req_id in cached.resumed_req_ids:
                self._tables[req_id] = [list(ids) for ids in new_ids or ()]
            elif new_ids is not None and req_id in self._tables:
                for table, ids in zip(self._tables[req_id], new_ids, strict=True):
                    table.extend(ids)


def has_fixed_hash_root() -> bool:
    """Tell whether block hashes start from the same root at every start, whatever the environment says."""
    return hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED")


def check_hash_root() -> None:
    """Refuse a root of the block-hash chain that no restart finds again; raises ValueError with the fix.

    0.28 draws it at random unless PYTHONHASHSEED is set (fixed by default since vLLM #51875).
    """
    if not has_fixed_hash_root() and not os.environ.get("PYTHONHASHSEED"):
        raise ValueError(
            f"vLLM {vllm_version()} starts its block hashes from a random NONE_HASH, so nothing stored could be found "
            "after a restart; set the environment variable PYTHONHASHSEED (the same on every engine, e.g. 0)"
        )


def transfer_results(received: set[str], failed: set[str]) -> Any:
    """Build 0.30's snapshot of finished transfers; a failed id is also among the received."""
    return connector_base.KVConnectorTransferResults(
        finished_sending=set(), finished_recving=received | failed, failed_recving=failed
    )


def hash_block_tokens(config: "VllmConfig", kv_cache_config: Any) -> int:
    """Give the tokens one block hash covers. The engine core says so from 0.29 on; before, by its own rule."""
    tokens: int | None = getattr(kv_cache_config, "hash_block_size", None)
    if tokens is not None:
        return tokens
    resolved: tuple[int, int] = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, config)
    return resolved[1]


def block_hashes(request: Any, tokens: int, block_tokens: int, algorithm: str) -> list[bytes]:
    """Give the hashes of the first tokens of a prompt in blocks of `block_tokens`, by vLLM's own code."""
    hash_fn = hashing.get_hash_fn_by_name(algorithm)
    hasher = kv_cache_utils.get_request_block_hasher(block_tokens, hash_fn)
    return [bytes(block_hash) for block_hash in hasher(_Beginning(request, tokens))]


def attention_layers(config: "VllmConfig") -> Mapping[str, Any]:
    """Give the layers that a worker's forward finds by name, once the model is loaded."""
    found: Mapping[str, Any] = config.compilation_config.static_forward_context
    return found


def cache_writer(layer: Any) -> Callable[..., None]:
    """Give a layer's own writer of K and V, as vLLM's `unified_kv_cache_update` calls it.

    Raises ValueError for a layer that writes them in its forward only.
    """
    write = getattr(getattr(layer, "impl", None), "do_kv_cache_update", None)
    backend = getattr(layer, "attn_backend", None)
    if write is None or getattr(backend, "forward_includes_kv_cache_update", False):
        raise ValueError("it has no writer of K and V apart from its forward")

    def written(key: Any, value: Any, cache: Any, slots: Any) -> None:
        with torch.inference_mode():
            write(layer, key, value, cache, slots)

    return written


def kernel(layer: Any) -> str:
    """Name the code that writes a layer's pages; CPU kernels have a variant by instruction set."""
    impl = getattr(layer, "impl", None)
    # 0.28 keeps the variant in the implementation, later releases in the layer.
    isa = getattr(layer, "isa", None) or getattr(impl, "isa", None)
    cache_dtype = getattr(impl, "kv_cache_dtype", None)
    names = [full_name(layer if impl is None else impl), isa, cache_dtype]
    return " ".join(str(name) for name in names if name is not None)


def device(config: "VllmConfig") -> torch.device:
    """Give the kind of device that an engine computes on."""
    return torch.device(config.device_config.device_type)


def head_sizes(layer: Any) -> tuple[int, int]:
    """Give the elements of a layer's K and V vectors; only some kinds of layers have two sizes."""
    return layer.head_size, getattr(layer, "head_size_v", layer.head_size)


def processor(device: torch.device) -> str:
    """Name the kind of processor that computes, as far as kernels choose by it."""
    if device.type != "cpu":
        return str(current_platform.get_device_name())
    tiles = " AMX" if getattr(torch.cpu, "_is_amx_tile_supported", bool)() else ""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}{tiles}"


class _Beginning:
    """The first tokens of a request, without hashes; other attributes, extra keys included, are the request's."""

    def __init__(self, request: Any, tokens: int) -> None:
        self._request = request
        self.num_tokens = tokens
        self.block_hashes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def _owners_above() -> Iterator[Any]:
    """Give the objects whose methods lead here; `inspect` would read source files."""
    above: Any = sys._getframe(1)  # noqa: SLF001
    while above is not None:
        yield above.f_locals.get("self")
        above = above.f_back


def worker_above() -> Any | None:
    """Give the worker that is building this connector, or None; vLLM passes none, so the callers are walked up."""
    return next((owner for owner in _owners_above() if isinstance(owner, WorkerBase)), None)


def weight_calls(worker: Any, names: Sequence[str]) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Give (owner, name, call) for a worker's calls in `names`, and for the weight loaders of its runner and model.

    Releases differ in what a worker can do; a model may lie in a wrapper that passes calls on.
    """
    runner = getattr(worker, "model_runner", None)
    model = getattr(runner, "model", None)
    inner = getattr(runner, "get_model", lambda: model)()
    wanted = [(worker, name) for name in names] + [(runner, "reload_weights")]
    wanted += [(part, "load_weights") for part in ([model] if inner is model else [model, inner])]
    found = [(owner, name, getattr(owner, name, None)) for owner, name in wanted]
    return [(owner, name, call) for owner, name, call in found if call is not None]


def models_of(worker: Any) -> list[torch.nn.Module]:
    """Give the models of a worker: its runner's, and the one that drafts."""
    runner = getattr(worker, "model_runner", None)
    drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    found = (getattr(runner, "model", None), getattr(drafter, "model", None))
    return [model for model in found if isinstance(model, torch.nn.Module)]


def after_warm_up(worker: Any | None, call: Callable[[], None]) -> None:
    """Make a call when a worker has captured its CUDA graphs: `compile_or_warm_up_model` does so, once."""
    warm_up = getattr(worker, "compile_or_warm_up_model", None)
    if warm_up is None:
        return

    @wraps(warm_up)
    def warmed_up(*args: Any, **kwargs: Any) -> Any:
        try:
            return warm_up(*args, **kwargs)
        finally:
            call()

    worker.compile_or_warm_up_model = warmed_up  # type: ignore[union-attr]


def schedules_per_rank(config: "VllmConfig") -> bool:
    """Tell whether each of several ranks has a scheduler of its own, which must plan what all others plan."""
    parallel = config.parallel_config
    is_launched: bool = parallel.distributed_executor_backend == "external_launcher"
    return is_launched and parallel.world_size > 1


def works_beside_scheduler(config: "VllmConfig") -> bool:
    """Tell whether the worker runs in the process of its scheduler, as one rank alone does."""
    return str(config.parallel_config.distributed_executor_backend) == "uni"


def is_beside_scheduler(config: "VllmConfig") -> bool:
    """Tell whether rank 0 runs on the machine of its scheduler; Ray may place it elsewhere."""
    return config.parallel_config.distributed_executor_backend in ("uni", "mp")


def steps_by_calls_only() -> bool:
    """Tell whether the engine runs in its caller's process, and so makes no step after a batch's last one."""
    return not envs.VLLM_ENABLE_V1_MULTIPROCESSING


def session_of(request: Any) -> Any:
    """Give a request's session by vLLM's own field (0.32), as the client wrote it; None without one."""
    return getattr(request, "session_id", None) or None


def hint_actions(request: Any) -> Sequence[Any]:
    """Give the actions of a request's `kv_hints` (0.32)."""
    actions: Sequence[Any] = getattr(getattr(request, "kv_hints", None), "actions", None) or ()
    return actions


def computes_on_cpu() -> bool:
    """Tell whether this vLLM computes on the CPU."""
    return bool(current_platform.is_cpu())


@cache
def _hit_source_names() -> tuple[Any, Any]:
    kinds = import_module("vllm.v1.metrics.cache_hit_source").CacheHitSource
    return kinds.HOST, kinds.EXTERNAL_UNSPECIFIED


def hit_sources(host: int, elsewhere: int) -> dict[Any, int]:
    """Give restored tokens by vLLM's names of their sources; only 0.32 and later call this."""
    counts = zip(_hit_source_names(), (host, elsewhere), strict=True)
    return {name: tokens for name, tokens in counts if tokens}


def publishes_events(config: Any) -> bool:
    """Tell whether the engine publishes KV-cache events."""
    events = config.kv_events_config
    return events is not None and bool(events.enable_kv_cache_events)


def publish_over_ipv6(config: Any) -> None:
    """Let the sockets of the engine's events listen on IPv6 as well as IPv4.

    vLLM binds `tcp://*:PORT` for IPv4 alone and cannot bind `tcp://[::]:PORT` (distributed/kv_events.py). It makes both
    sockets after the connector, in pyzmq's shared context, whose options new sockets take. Without IPv6 on the machine
    the system's library falls back to IPv4.
    """
    if publishes_events(config):
        zmq = import_module("zmq")
        zmq.Context.instance().setsockopt(zmq.IPV6, 1)


def _is_one_of_several(config: Any) -> bool:
    """Tell whether an engine is one of several data-parallel ranks.

    Ranks of models without experts are configured as if they were alone, but for their engine's id (v1/engine/core.py).
    """
    engine_id = str(config.kv_transfer_config.engine_id)
    is_rank = re.search(r"_dp\d+$", engine_id) is not None
    return is_rank or config.parallel_config.data_parallel_size > 1


def _server_lists_ranks(config: Any) -> bool:
    """Tell whether the ranks' server has all of them, and lists them at `/kv_event_sources`; since 0.32."""
    client = import_module("vllm.engine.protocol").EngineClient
    parallel = config.parallel_config
    is_split = parallel.data_parallel_external_lb or parallel.data_parallel_hybrid_lb
    return hasattr(client, "get_kv_event_sources") and not is_split


def event_endpoints(config: Any) -> dict[str, str]:
    """Give the engine's endpoints for events and replays.

    Several data-parallel ranks give the first one's, from which a gateway finds the others by their server's list;
    nothing where the server has no such list.
    """
    if not publishes_events(config):
        return {}
    if _is_one_of_several(config) and not _server_lists_ranks(config):
        return {}
    events = config.kv_events_config
    found = {"events": events.endpoint, "replays": events.replay_endpoint}
    return {name: value for name, value in found.items() if value}


def prefix_cache(pool: Any) -> Any:
    """Give a pool's table of cached blocks; `reset_prefix_cache` replaces the object."""
    return getattr(pool, "cached_block_hash_to_block", None)


def hub_commit(hf_config: Any) -> str | None:
    """Give the commit a model was fetched at; transformers sets it on models from the hub only."""
    commit: str | None = getattr(hf_config, "_commit_hash", None)
    return commit


def tokens_per_state(spec: Any) -> Any:
    """Give the tokens one stored state of a spec covers; 0.28 knew only 1, and a spec need not say."""
    try:
        return getattr(spec, "tokens_per_state", 1)
    except NotImplementedError:
        return 1


def hands_off_states() -> bool:
    """Tell whether the scheduler hands recurrent states at block boundaries to a connector.

    0.28 hands over copies at places within a block only (`partial_tail_offloads`); whole boundaries came with 0.29.
    """
    return hasattr(sched_output, "KVConnectorBlockState")


def boundary_states(scheduler_output: Any) -> Mapping[str, Sequence[tuple[int, int, int]]]:
    """Give the states handed over in this step: request id -> (group, block id, prompt tokens before it)."""
    state = getattr(scheduler_output, "kv_connector_block_state", None)
    return state.boundary_state_offloads if state is not None else {}


def is_loading(request: Any) -> bool:
    """Tell whether a request waits for its load, or for vLLM to put the loaded blocks into its own cache."""
    return bool(request.status == RequestStatus.WAITING_FOR_REMOTE_KVS)


def takes_slot(request: Any) -> bool:
    """Tell whether a request that vLLM gave blocks runs, loads, or has loaded; a preempted one starts over."""
    return bool(request.status == RequestStatus.RUNNING or request.num_computed_tokens > 0)


def running_slots(config: "VllmConfig") -> int:
    """Give the most requests that vLLM runs at once."""
    scheduler = config.scheduler_config
    active = getattr(scheduler, "max_num_active_seqs", None)  # 0.32
    return int(scheduler.max_num_seqs if active is None else active)


def fails_requests() -> bool:
    """Tell whether a failed load can be reported by request id (0.30 and later); before, only by block id.

    Block ids of several groups crash the scheduler (vLLM #45474).
    """
    return hasattr(connector_base, "KVConnectorTransferResults")


def ends_loads(config: "VllmConfig", kv_cache_config: Any) -> bool:
    """Tell whether vLLM can be told of a load's lost blocks and then keeps the blocks before them (0.30 and later).

    Only with one group, whose blocks are as long as the scheduler's (v1/core/sched/scheduler.py,
    `_update_requests_with_invalid_blocks`).
    """
    if not fails_requests() or len(kv_cache_config.kv_cache_groups) != 1:
        return False
    (group,) = kv_cache_config.kv_cache_groups
    parallel = config.parallel_config
    is_cut = parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1
    return not is_cut and group.kv_cache_spec.block_size == config.cache_config.block_size


def is_left_out(kv_cache_config: Any, index: int) -> bool:
    """Tell whether vLLM itself keeps a group out of transfers and prefix caching (0.30 and later)."""
    taking_part = getattr(kv_cache_config, "prefix_cacheable_group_ids", None)
    return taking_part is not None and index not in taking_part


def is_host_resident(group: Any) -> bool:
    """Tell whether a group's blocks lie in host memory, in a pool of their own (0.30 and later)."""
    return bool(getattr(group, "host_resident", False))


def sees_later_tokens(spec: Any) -> bool:
    """Tell whether a layer attends to tokens behind a block, too (not every kind says)."""
    return bool(getattr(spec, "non_causal", False))


def specs_by_layer(spec: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Give each layer's own spec: vLLM wraps those of one type whose sizes differ (`UniformTypeKVCacheSpecs`)."""
    found: Mapping[str, Any] | None = getattr(spec, "kv_cache_specs", None)
    return found or dict.fromkeys(names, spec)


def retained_tokens(spec: Any) -> int:
    """Give the tokens a window keeps beyond its reach, for drafts; 0.28 kept none."""
    tokens: int = getattr(spec, "extra_retained_tokens", 0)
    return tokens


def tensor_shards(spec: Any) -> int | None:
    """Give into how many shards tensor parallelism cuts a layer; None where vLLM does not say (0.31 began to)."""
    shards: int | None = getattr(spec, "max_tp_shards", None)
    return shards


def content_bytes(spec: Any) -> int:
    """Give the bytes of a layer's page without padding; 0.29 has another name for a recurrent state's.

    Only `page_size_bytes`, padding included, is in every spec.
    """
    for name in ("real_page_size_bytes", "unpadded_page_size_bytes"):
        size: int | None = getattr(spec, name, None)
        if size is not None:
            return size
    try:  # the shape of the views that vLLM makes (`compute_layer_kv_cache_shape_bytes`)
        return int(spec.num_heads * spec.num_states * spec.state_content_size_bytes)
    except (AttributeError, NotImplementedError):
        pass
    page_bytes: int = spec.page_size_bytes
    return page_bytes


def full_name(spec: Any) -> str:
    """Name a spec's class with its module."""
    return f"{type(spec).__module__}.{type(spec).__qualname__}"


def page_format(config: "VllmConfig", kv_cache_config: Any) -> str:
    """Name what determines the layout of opaque pages: platform, backend and layout (the last from 0.29 on)."""
    layout = getattr(kv_cache_config, "kv_cache_layout", None)
    device = current_platform.get_device_name()
    return f"{device} {config.attention_config.backend} {layout}"


def set_recompute_policy(config: "VllmConfig") -> bool:
    """Set `kv_load_failure_policy` to `recompute`; True when that changed it.

    The scheduler reads it after our constructor (v1/core/sched/scheduler.py). MultiConnector gives each connector a
    configuration of its own, which the scheduler never reads, so the scheduler's is found through the callers.
    """
    above = [getattr(owner, "vllm_config", None) for owner in _owners_above()]
    found = [getattr(one, "kv_transfer_config", None) for one in (config, *above)]
    changed = [
        one for one in found if one is not None and one.kv_load_failure_policy != "recompute"
    ]
    for transfer in changed:
        transfer.kv_load_failure_policy = "recompute"
    return bool(changed)
