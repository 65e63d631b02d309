"""Functions that a test runs on vLLM's own offloading inside an engine's process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm.offloading.tier import TierKVTier
from vllm.distributed import kv_transfer

if TYPE_CHECKING:
    from harness.engine_main import Host


def offloading(host: Host) -> dict[str, Any]:
    """Returns the tier's counters and holdings, and vLLM's files in shared memory."""
    tier = host.scheduler.connector._tier
    engine = host.scheduler.vllm_config.kv_transfer_config.engine_id
    return {
        "counters": tier.counters.snapshot(),
        "plans": sum(reader.plan is not None for reader in tier._readers.values()),
        "requests": len(tier._readers),
        "is_busy": tier.has_pending_work(),
        "files": [path.name for path in Path("/dev/shm").glob(f"*offload*{engine}*")],
    }


def reverse_promotions(host: Host) -> None:
    """Makes each restored chunk arrive with its bytes reversed."""
    read = TierKVTier._read

    def reversing(tier: TierKVTier, *arguments: Any) -> bool:
        is_read = read(tier, *arguments)
        assert tier._rows is not None
        row = tier._rows[arguments[-1]]
        row.copy_(row.flip(0))
        return is_read

    TierKVTier._read = reversing  # type: ignore[assignment, method-assign]


def end_offloading(host: Host) -> list[str]:
    """Ends the connector as vLLM does; returns leftovers in shared memory."""
    host.scheduler.connector.shutdown()
    kv_transfer.ensure_kv_transfer_shutdown()
    files: list[str] = offloading(host)["files"]
    return files
