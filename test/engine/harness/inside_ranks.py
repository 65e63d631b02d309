"""Functions that a test runs on every rank of an engine, in this process or in its workers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine_main import Host

#: Names of a group's layers, and a block of that group.
Place = tuple[list[str], int]


def on_every_rank(host: Host, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Runs `function(worker, *arguments)` on every rank; returns the results in their order."""
    return list(host.core.model_executor.collective_rpc(function, args=arguments))


def set_limits(_: Any, limits_: dict[str, Any]) -> None:
    """Sets limits of the shim's half in a worker process."""
    from tierkv.connectors.vllm import limits  # noqa: PLC0415

    for name, value in limits_.items():
        setattr(limits, name, value)


def spoil_pages(worker: Any) -> None:
    """Overwrites every page."""
    for tensor in worker.worker.model_runner.kv_caches:
        tensor[1:].fill_(1.5)


def shim_state(_: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the open work and the counters of the shim's half."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415

    side = get_kv_transfer_group().worker_side
    return side.status(), side.counters.snapshot()


def digest_pages(worker: Any, blocks: int, places: list[Place]) -> list[str]:
    """Returns digests of pages over this rank's layers, read through vLLM's own view of the caches."""
    layers = worker.worker.model_runner.vllm_config.compilation_config.static_forward_context
    digests = []
    for names, block_id in places:
        digest = hashlib.sha256()
        for name in names:
            for tensor in _flat(layers[name].kv_cache) if name in layers else ():
                row = tensor.unflatten(0, (blocks, -1))[block_id].contiguous().view(torch.uint8)
                digest.update(row.numpy().data)
        digests.append(digest.hexdigest())
    return digests


def digests_of(host: Host, places: list[Place]) -> list[str]:
    """Returns digests of pages over all ranks."""
    blocks = host.scheduler.kv_cache_config.num_blocks
    by_rank = on_every_rank(host, digest_pages, blocks, places)
    return [" ".join(shards) for shards in zip(*by_rank, strict=True)]


def _flat(cache: Any) -> list[torch.Tensor]:
    """Returns a layer's cache as tensors: one, or for a recurrent layer one for each part of its state."""
    if isinstance(cache, torch.Tensor):
        return [cache]
    return [tensor for part in cache for tensor in _flat(part)]
