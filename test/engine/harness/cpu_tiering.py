"""Lets vLLM's tiered offloading run on a CPU, where it has no worker: its regions and managers, copies by torch."""

from __future__ import annotations

import inspect
import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies blocks of one group between the engine's pages and rows of the region, within the call."""

    def __init__(self, caches: Any, region: SharedOffloadRegion, blocks_per_chunk: int) -> None:
        (self._refs,) = caches.group_data_refs
        self._region = region
        self._blocks = blocks_per_chunk
        self._sizes = [tensor.page_size_bytes for tensor in caches.tensors]
        self._pages = [tensor.tensor for tensor in caches.tensors]
        self._rows = [
            region.create_next_worker_view(size * blocks_per_chunk) for size in self._sizes
        ]
        self._done: list[TransferResult] = []

    def _copy(self, job: int, engine: Any, chunks: Any, *, is_store: bool) -> bool:
        began, size = time.monotonic(), 0
        (first,) = engine.block_indices
        for number, block in enumerate(engine.block_ids):
            place = first % self._blocks + number
            chunk = int(chunks.block_ids[place // self._blocks])
            for ref in self._refs:
                at = place % self._blocks * self._sizes[ref.tensor_idx]
                row = self._rows[ref.tensor_idx][chunk][at : at + ref.page_size_bytes]
                page = self._pages[ref.tensor_idx][int(block)].reshape(-1).view(torch.int8)
                page = page[: ref.page_size_bytes]
                (row if is_store else page).copy_(page if is_store else row)
                size += ref.page_size_bytes
        self._done.append(TransferResult(job, True, size, time.monotonic() - began))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, is_store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, is_store=False)

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Does nothing, because every copy is done when its call returns."""

    def shutdown(self) -> None:
        self._rows.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's own spec with another worker."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            names = inspect.signature(SharedOffloadRegion.__init__).parameters
            sizes = {
                "num_chunks": getattr(self, "num_chunks", 0),
                "num_blocks": getattr(self, "num_blocks", 0),
                "kv_bytes_per_chunk": self.kv_bytes_per_chunk,
                "kv_bytes_per_block": self.kv_bytes_per_chunk,
            }
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                rank=self.config.parallel.rank,
                cpu_page_size=self.cpu_page_size_per_worker,
                **{name: size for name, size in sizes.items() if name in names},
            )
            self._worker = CopyingWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker
