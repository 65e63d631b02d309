"""How far a prompt's pages are from what they were: measured inside the engine, against the bound of the INT8 codec."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from vllm import SamplingParams
from vllm.v1.request import Request

if TYPE_CHECKING:
    from harness.engine_main import Host

_kept: list[torch.Tensor] = []


def keep_pages(host: Host, prompt: list[int]) -> int:
    """Keeps a copy of the pages of the prompt's leading blocks for `compare_pages`; gives their count."""
    _kept[:] = _pages(host, prompt)
    return len(_kept)


def compare_pages(host: Host, prompt: list[int]) -> dict[str, Any]:
    """Compares pages with those kept: worst error over the bound of docs/protocol.md 1, SNR, equality."""
    now = _pages(host, prompt)
    assert len(now) == len(_kept) > 0
    pages = host.worker._pages[0]
    k = pages.group.dim_k
    worst, signal, noise = 0.0, 0.0, 0.0
    for before, after in zip(_kept, now, strict=True):
        for part in (slice(0, k), slice(k, None)):
            x, y = before[..., part].double(), after[..., part].double()
            worst = max(worst, float(((x - y).abs() / _bound(before[..., part])).max()))
            signal += float((x * x).sum())
            noise += float(((x - y) ** 2).sum())
    snr_db = 10 * math.log10(signal / noise) if noise else math.inf
    equal = all(torch.equal(a, b) for a, b in zip(_kept, now, strict=True))
    return {"worst": worst, "snr_db": snr_db, "equal": equal}


def _bound(vectors: torch.Tensor) -> torch.Tensor:
    absmax = vectors.float().abs().amax(-1, keepdim=True)
    scale = (absmax * (1 / 127)).to(torch.bfloat16).double().clamp(min=2.0**-126)
    half_step = 0.5 + 2.0**-15 if vectors.dtype == torch.float32 else 1 + 2.0**-14
    return scale * half_step


def _pages(host: Host, prompt: list[int]) -> list[torch.Tensor]:
    hasher = host.core.request_block_hasher
    request = Request("pages", prompt, SamplingParams(), None, block_hasher=hasher)
    found = []
    for block_hash in request.block_hashes:
        block = host.scheduler.kv_cache_manager.block_pool.get_cached_block(block_hash, [0])
        if block is None:
            break
        views = host.worker._pages[0].views(block[0].block_id)
        found.append(torch.cat([view.clone() for view in views]))
    return found
