"""The one place that knows how vLLM releases differ; each branch names the release and the reason."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.core import kv_cache_utils

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = [
    "BlockTables",
    "KVConnectorBase_V1",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
    "check_hash_root",
    "check_release",
    "none_hash",
    "steps_after_last_request",
    "transfer_results",
    "vllm_version",
]

log = logging.getLogger("tierkv.shim")

#: Oldest and newest release the test suite ran on.
OLDEST_RELEASE = (0, 28)
NEWEST_TESTED_RELEASE = (0, 32)


def vllm_version() -> str:
    """Give the version of the running vLLM as it names itself."""
    return str(vllm.__version__)


def check_release(version: str) -> None:
    """Refuse releases older than the suite ran on; warn about newer ones. Raises ValueError naming both."""
    parts = version.split("+", maxsplit=1)[0].split(".")
    try:
        release = (int(parts[0]), int(parts[1]))
    except (ValueError, IndexError):
        log.warning(
            "tierKV: cannot read the vLLM version %r; going on as if it were known", version
        )
        return
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


def none_hash() -> bytes | None:
    """Give the root of the block-hash chain, or None before the engine core has set it.

    It is set after both constructors (v1/engine/core.py), so the namespace is computed at the first request.
    """
    value = getattr(kv_cache_utils, "NONE_HASH", None)
    return None if value is None else bytes(value)


class BlockTables:
    """The block tables of the requests in a step, one list of block ids per KV-cache group.

    From 0.29 the scheduler offers them (`SchedulerOutput.kv_connector_block_state`); 0.28 sends only what is new for
    each request, so they are added up here.
    """

    def __init__(self) -> None:
        self._tables: dict[str, list[list[int]]] = {}

    def of_step(self, scheduler_output: Any) -> Callable[[str], Sequence[Sequence[int]] | None]:
        """Give a function from request id to its tables in this step; None for a request it does not know."""
        state = getattr(scheduler_output, "kv_connector_block_state", None)
        if state is not None:
            get_block_ids: Callable[[str], Sequence[Sequence[int]] | None] = state.get_block_ids
            return get_block_ids
        self._add_up(scheduler_output)
        return self._tables.get

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


def check_hash_root() -> None:
    """Refuse a root of the block-hash chain that no restart finds again; raises ValueError with the fix.

    0.28 draws it at random unless PYTHONHASHSEED is set (fixed by default since vLLM #51875).
    """
    if not hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED") and not os.environ.get(
        "PYTHONHASHSEED"
    ):
        raise ValueError(
            f"vLLM {vllm_version()} starts its block hashes from a random NONE_HASH, so nothing stored could be found "
            "after a restart; set the environment variable PYTHONHASHSEED (the same on every engine, e.g. 0)"
        )


def steps_after_last_request() -> bool:
    """Tell whether the engine goes on stepping while the connector has work (`has_pending_push_work`).

    With everything in one process only the caller of `LLM.generate` steps (v1/engine/core_client.py, InprocClient).
    """
    return os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") != "0"


def transfer_results(received: set[str], failed: set[str]) -> Any:
    """Build 0.30's snapshot of finished transfers; a failed id is also among the received."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: PLC0415 - absent before 0.30
        KVConnectorTransferResults,
    )

    return KVConnectorTransferResults(
        finished_sending=set(), finished_recving=received | failed, failed_recving=failed
    )


def hash_block_tokens(kv_cache_config: Any) -> int | None:
    """Give the tokens one block hash covers where the engine core says so (0.29 and later)."""
    tokens: int | None = getattr(kv_cache_config, "hash_block_size", None)
    return tokens


def hub_commit(hf_config: Any) -> str | None:
    """Give the commit a model was fetched at; transformers sets it on models from the hub only."""
    commit: str | None = getattr(hf_config, "_commit_hash", None)
    return commit


def tokens_per_state(spec: Any) -> Any:
    """Give the tokens one stored state of a spec covers; 0.28 knew only 1."""
    return getattr(spec, "tokens_per_state", 1)


def set_recompute_policy(config: "VllmConfig") -> bool:
    """Set `kv_load_failure_policy` to `recompute`; True when that changed it.

    The scheduler reads it after our constructor (v1/core/sched/scheduler.py).
    """
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_load_failure_policy == "recompute":
        return False
    transfer.kv_load_failure_policy = "recompute"
    return True
