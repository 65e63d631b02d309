"""Functions that a test runs inside an engine's process: generate, read pages and counts, empty and spoil the cache."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from tierkv.connectors.vllm.api.compat import vllm_version
from tierkv.connectors.vllm.pages.copies import CpuCopier
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

from harness.inside_axes import compare_axes
from harness.inside_fidelity import weigh
from harness.inside_guards import break_method
from harness.inside_int8 import compare_pages, keep_pages
from harness.inside_pressure import press
from harness.inside_ranks import Place, digests_of, on_every_rank, shim_state, spoil_pages
from harness.inside_steps import abort, begin, finish, go_on_until, preempt_all, read_weights
from harness.inside_talk import talk
from harness.inside_tier import end_offloading, offloading, reverse_promotions
from harness.inside_weights import change_weights, reset_all, scale_weights, sleep
from harness.sight import SIDE

if TYPE_CHECKING:
    from tierkv.connectors.vllm.pages.copies import Batch

    from harness.engine_main import Host

Json = dict[str, Any]

__all__ = [
    "abort",
    "begin",
    "break_method",
    "change_weights",
    "compare_axes",
    "compare_pages",
    "compute_nothing",
    "embed",
    "end_offloading",
    "facts",
    "finish",
    "flip_loaded_byte",
    "generate",
    "generate_embedded",
    "go_on_until",
    "keep_pages",
    "offloading",
    "pages",
    "pages_by_group",
    "preempt_all",
    "press",
    "read_weights",
    "reset",
    "reset_all",
    "reset_clocks",
    "reverse_promotions",
    "scale_weights",
    "sleep",
    "spoil",
    "status",
    "talk",
    "weigh",
]


def generate(
    host: Host,
    prompts: list[list[int]],
    max_tokens: int = 8,
    prompt_logprobs: int | None = None,
    salt: str | None = None,
    adapter: str | None = None,
    picture: int | None = None,
    uuid: str | None = None,
    transfer: Json | None = None,
) -> list[Json]:
    """Returns greedy answers: token ids, their log-probabilities, and the prompt tokens found in any cache.

    `adapter`: the folder of a LoRA adapter. `picture`: the seed of each prompt's picture; `uuid`: the client's name
    for it. `transfer`: the requests' `kv_transfer_params`.
    """
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        logprobs=0,
        prompt_logprobs=prompt_logprobs,
        detokenize=False,
        ignore_eos=True,
        extra_args=None if transfer is None else {"kv_transfer_params": transfer},
    )
    salted = {} if salt is None else {"cache_salt": salt}
    shown = {} if picture is None else {"multi_modal_data": {"image": _picture(picture)}}
    named = {} if uuid is None else {"multi_modal_uuids": {"image": uuid}}
    inputs = [{"prompt_token_ids": prompt, **salted, **shown, **named} for prompt in prompts]
    lora = None if adapter is None else LoRARequest("adapter", 1, adapter)
    outputs = host.llm.generate(inputs, params, use_tqdm=False, lora_request=lora)
    return [_answer(output) for output in outputs]


def first_token_s(host: Host, prompt: list[int], transfer: Json | None = None) -> Json:
    """Returns one greedy token of a prompt, and the seconds since the request."""
    begun = time.perf_counter()
    (answer,) = generate(host, [prompt], max_tokens=1, transfer=transfer)
    return {**answer, "seconds": time.perf_counter() - begun}


def _picture(seed: int) -> Image.Image:
    """Returns noise of the size that the vision model of harness/sight.py takes."""
    noise = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def generate_embedded(host: Host, seed: int, tokens: int) -> list[int]:
    """Returns the answer to a prompt given as embeddings, drawn with a seed."""
    hidden = host.llm.llm_engine.model_config.get_hidden_size()
    drawn = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(seed))
    prompt = {"prompt_embeds": drawn.to(host.llm.llm_engine.model_config.dtype)}
    params = SamplingParams(temperature=0, max_tokens=8, detokenize=False, ignore_eos=True)
    (output,) = host.llm.generate([prompt], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def embed(host: Host, prompt: list[int]) -> list[float]:
    """Returns a pooling model's embedding of a prompt."""
    (output,) = host.llm.embed([{"prompt_token_ids": prompt}], use_tqdm=False)
    return list(output.outputs.embedding)


def _answer(output: Any) -> Json:
    (completion,) = output.outputs
    tokens = list(completion.token_ids)
    logprobs = [
        step[token].logprob for step, token in zip(completion.logprobs, tokens, strict=True)
    ]
    found = {"cached": output.num_cached_tokens, "transfer": output.kv_transfer_params}
    return {"tokens": tokens, "logprobs": logprobs, **found}


def compute_nothing(host: Host) -> None:
    """Runs a dummy batch on every rank, as engines of data parallelism do between requests.

    Needed, because on a CPU later stages of a pipeline have no buffers for their input before: vLLM warms up compiled
    models only (vllm/v1/worker/cpu_model_runner.py).
    """
    host.llm.collective_rpc("execute_dummy_batch")


def reset(host: Host) -> bool:
    """Empties the engine's own prefix cache; returns whether no block was in use."""
    return bool(host.llm.reset_prefix_cache())


def spoil(host: Host) -> None:
    """Overwrites every page, so that a missing copy cannot pass for a restore."""
    on_every_rank(host, spoil_pages)


def _tensors(host: Host) -> list[torch.Tensor]:
    runner = host.core.model_executor.driver_worker.worker.model_runner
    return list(runner.kv_caches)


def pages(host: Host, prompt: list[int]) -> list[str]:
    """Returns digests of the pages of a prompt's leading cached blocks, over all layers' bytes."""
    from vllm.v1.request import Request  # noqa: PLC0415 - slow to import

    request = Request(
        "pages", prompt, SamplingParams(), None, block_hasher=host.core.request_block_hasher
    )
    tensors = _tensors(host)
    (group,) = host.scheduler.kv_cache_config.kv_cache_groups
    digests = []
    for block_hash in request.block_hashes:
        found = host.scheduler.kv_cache_manager.block_pool.get_cached_block(block_hash, [0])
        if found is None:
            break
        blocks = host.scheduler.kv_cache_config.num_blocks
        rows = [t.unflatten(0, (blocks, -1))[found[0].block_id].contiguous() for t in tensors]
        data = b"".join(bytes(row.view(torch.uint8).numpy().data) for row in rows)
        assert len(data) == group.kv_cache_spec.page_size_bytes * len(tensors)
        digests.append(hashlib.sha256(data).hexdigest())
    return digests


def pages_by_group(host: Host, prompt: list[int]) -> dict[str, dict[str, str]]:
    """Returns digests of all cached pages of a prompt: group -> block index -> digest.

    Read through vLLM's own view of each layer's cache, not through ours.
    """
    from vllm.v1.request import Request  # noqa: PLC0415 - slow to import

    request = Request(
        "pages", prompt, SamplingParams(), None, block_hasher=host.core.request_block_hasher
    )
    config = host.scheduler.kv_cache_config
    pool = host.scheduler.kv_cache_manager.block_pool
    names, places = list[tuple[str, str]](), list[Place]()
    for number, group in enumerate(config.kv_cache_groups):
        ratio = group.kv_cache_spec.block_size // pool.hash_block_size
        for index, block_hash in enumerate(request.block_hashes[ratio - 1 :: ratio]):
            blocks = pool.get_cached_block(block_hash, [number])
            if blocks is not None:
                names.append((str(number), str(index)))
                places.append((list(group.layer_names), blocks[0].block_id))
    digests: dict[str, dict[str, str]] = {
        str(number): {} for number in range(len(config.kv_cache_groups))
    }
    for (of_group, at), digest in zip(names, digests_of(host, places), strict=True):
        digests[of_group][at] = digest
    return digests


def status(host: Host) -> Json:
    """Returns the open work on both sides of the shim and in the engine, and the time spent in our calls."""
    pool = host.scheduler.kv_cache_manager.block_pool
    workers = on_every_rank(host, shim_state)
    counters = Counter[str](host.shim.counters.snapshot())
    for _, counted in workers:
        counters.update(counted)
    clocks = host.clocks
    return {
        "shim": host.shim.status(),
        "worker": workers[0][0],
        "counters": counters,
        "requests": len(host.scheduler.requests),
        "blocks_in_use": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
        "max_s": max(clock.max_s for clock in clocks),
        "p99_s": max(clock.quantile(0.99) for clock in clocks),
        "calls": sum(len(clock.samples) for clock in clocks),
        "copied_bytes": sum(clock.copy_bytes for clock in clocks),
    }


def metrics(host: Host) -> dict[str, float]:
    """Returns our values among vLLM's metrics and sources of cached tokens: by name, a counter or a count."""
    found = {}
    for metric in host.llm.get_metrics():
        if metric.name.startswith(("vllm:tierkv", "vllm:prompt_tokens_cached_by")):
            said = ("event", "reason", "tier", "source")
            labels = [metric.labels[name] for name in said if name in metric.labels]
            value = getattr(metric, "value", getattr(metric, "count", 0))
            found["/".join([metric.name, *labels])] = value
    return found


def reset_clocks(host: Host) -> None:
    """Forgets the times measured so far."""
    for clock in host.clocks:
        clock.samples.clear()
        clock.max_s = 0.0


def drafts(host: Host) -> dict[str, int]:
    """Returns how many tokens were drafted and how many of them accepted, since the start."""
    found = {metric.name: metric for metric in host.llm.get_metrics()}
    names = {"drafted": "num_draft_tokens", "accepted": "num_accepted_tokens"}
    return {name: int(found[f"vllm:spec_decode_{theirs}"].value) for name, theirs in names.items()}


def facts(host: Host) -> Json:
    """Returns the engine's facts: release, block size, blocks, dtype, policy for failed loads."""
    group = host.scheduler.kv_cache_config.kv_cache_groups[0]
    return {
        "release": vllm_version(),
        "runs_v2": host.core.vllm_config.use_v2_model_runner,
        "step": host.shim._grid.step if host.shim is not None else 0,
        "groups": [
            type(g.kv_cache_spec).__name__ for g in host.scheduler.kv_cache_config.kv_cache_groups
        ],
        "block_tokens": group.kv_cache_spec.block_size,
        "dtype": str(getattr(group.kv_cache_spec, "dtype", None)),
        "blocks": host.scheduler.kv_cache_config.num_blocks,
        "recompute": host.scheduler.recompute_kv_load_failures,
        "block_bytes": group.kv_cache_spec.page_size_bytes * len(group.layer_names),
        "layers": sum(len(g.layer_names) for g in host.scheduler.kv_cache_config.kv_cache_groups),
    }


def flip_loaded_byte(
    host: Host, block: int, layer: int, byte: int, group: int = 0, mask: int = 0x80
) -> None:
    """Flips bits of one byte of one page of a group, after verification and before its copy into the engine."""
    assert isinstance(host.worker._copier, CpuCopier)
    load = CpuCopier.load

    def corrupting_load(copier: CpuCopier, batch: Batch) -> None:
        if batch.pages.group.index != group:
            load(copier, batch)
            return
        _, slot = batch.pairs[block]
        layer_bytes = batch.pages.group.block_bytes // len(batch.pages.group.layer_names)
        place = batch.arena.slot(slot)[layer * layer_bytes + byte :][:1]
        place ^= mask
        load(copier, batch)
        place ^= mask  # restored, because the slot may be kept as a copy for others
        CpuCopier.load = load  # type: ignore[method-assign]

    CpuCopier.load = corrupting_load  # type: ignore[method-assign, assignment]
