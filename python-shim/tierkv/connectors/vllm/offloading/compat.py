"""Knows how vLLM releases differ in their own offloading; each branch names the release and the reason."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from vllm.v1.kv_offload.tiering.base import JobResult


def chunk_ids(job: Any) -> Sequence[int]:
    """Give a job's rows of the primary tier; 0.28 calls them blocks."""
    found = getattr(job, "chunk_ids", None)
    return [int(number) for number in (job.block_ids if found is None else found)]


def job_result(job: Any, done: Collection[bytes], seconds: float, size: int) -> Any:
    """Report a job whose keys `done` were transferred; 0.28 has no field for the bytes."""
    told = {
        "job_id": job.job_id,
        "success": len(done) == len(job.keys),
        "successful_keys": done or None,
        "transfer_time": seconds,
        "transfer_bytes": size,
    }
    known = {field.name for field in fields(JobResult)}
    return JobResult(**{name: value for name, value in told.items() if name in known})
