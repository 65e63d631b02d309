"""Owns the worker that runs vLLM's offloading to host memory on a CPU, because vLLM has one for GPUs only.

The manager, its LRU and its connector are vLLM's; this worker copies pages with torch, within the step.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from typing_extensions import override
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies whole pages of one group between the engine's tensors and host tensors of its own."""

    def __init__(self, caches: CanonicalKVCaches, chunks: int) -> None:
        """`caches`: int8 tensors of (blocks, page bytes); `chunks`: how many blocks the host tensors hold."""
        self._engine = [each.tensor for each in caches.tensors]
        self._host = [
            torch.empty((chunks, each.shape[1]), dtype=torch.int8) for each in self._engine
        ]
        self._done: list[TransferResult] = []

    def _copied(self, job: int, began: float, pages: int) -> bool:
        size = pages * sum(each.shape[1] for each in self._engine)
        self._done.append(TransferResult(job, True, size, time.monotonic() - began))
        return True

    @override
    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        began = time.monotonic()
        source, target = (torch.as_tensor(spec.block_ids) for spec in (src_spec, dst_spec))
        for engine, host in zip(self._engine, self._host, strict=True):
            host[target] = engine[source]
        return self._copied(job_id, began, len(source))

    @override
    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        began = time.monotonic()
        source, target = (torch.as_tensor(spec.block_ids) for spec in (src_spec, dst_spec))
        for engine, host in zip(self._engine, self._host, strict=True):
            engine[target] = host[source]
        return self._copied(job_id, began, len(source))

    @override
    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    @override
    def wait(self, job_ids: set[int]) -> None:
        """Does nothing, because every copy is done when its call returns."""


class CopyingSpec(CPUOffloadingSpec):
    """vLLM's offloading to host memory with the worker above, for one group and one block per chunk."""

    @override
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if len(kv_caches.group_data_refs) != 1 or self.blocks_per_chunk != 1:
            raise ValueError("the comparison copies one group, a block a chunk")
        return CopyingWorker(kv_caches, self.num_chunks)
