"""Compares inside the engine the K and V that a forward hands to vLLM's writer with those that tierKV reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tierkv.connectors.vllm.api import compat
from vllm import SamplingParams
from vllm.v1.request import Request

if TYPE_CHECKING:
    from harness.engine_main import Host


def compare_axes(host: Host, prompt: list[int]) -> dict[str, Any]:
    """Computes a prompt and reads its blocks; returns the compared blocks, those that differ, and the shim's counts."""
    group = host.shim._grid.groups[0]
    layers = compat.attention_layers(host.worker._config)
    written: dict[tuple[str, int], torch.Tensor] = {}
    undo = [_record(name, layers[name], written) for name in group.layer_names]
    try:
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
        host.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    finally:
        for impl in undo:
            del impl.do_kv_cache_update
    hasher = host.core.request_block_hasher
    request = Request("axes", prompt, SamplingParams(), None, block_hasher=hasher)
    pool = host.scheduler.kv_cache_manager.block_pool
    pages, tokens = host.worker._pages[group.index], group.block_tokens
    compared = wrong = 0
    for index in range(len(prompt) // tokens):
        (block,) = pool.get_cached_block(host.shim._grid.block_hash(request, group, index), [0])
        read = pages.read(block.block_id)
        for number, name in enumerate(group.layer_names):
            start = block.block_id * tokens
            rows = [written[name, slot] for slot in range(start, start + tokens)]
            compared += 1
            wrong += not torch.equal(read[number], torch.stack(rows, 1))
    counts = host.worker.counters.snapshot()
    kinds = {name: counts.get(f"pages_{name}", 0) for name in ("canonical", "opaque")}
    return {"compared": compared, "wrong": wrong, **kinds}


def _record(name: str, layer: Any, written: dict[tuple[str, int], torch.Tensor]) -> Any:
    """Notes K and V of each slot, (heads, K then V), before vLLM's own writer gets them."""
    impl, write = layer.impl, layer.impl.do_kv_cache_update

    def noted(of: Any, key: torch.Tensor, value: torch.Tensor, cache: Any, slots: Any) -> None:
        both = torch.cat((key, value), -1)[: len(slots)].clone()
        written.update(zip([(name, slot) for slot in slots.tolist()], both, strict=True))
        write(of, key, value, cache, slots)

    impl.do_kv_cache_update = noted
    return impl
