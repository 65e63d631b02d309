"""Owns an engine that computes nothing: vLLM's scheduler, block pool and pages in this process, its forward a pause."""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm import LLM, SamplingParams

VOCAB = 512
#: Position at which a token takes twice as long as a prompt's first.
ATTENDED = 8192
#: Pause of vLLM 0.28 to 0.32 after a step that ran no model while requests wait (v1/engine/core.py).
IDLE_STEP_S = 0.001


def make_engine(
    model: str,
    socket: str | None,
    *,
    kv_bytes: int,
    chunk: int,
    longest: int,
    block: int,
    token_us: float,
    connector: dict[str, Any] | None = None,
) -> LLM:
    """Return the engine: with tierKV, or with `connector` where `socket` is None.

    `token_us`: time of a prompt's first token.
    """
    transfer = {
        "kv_connector": "TierKVConnector",
        "kv_connector_module_path": "tierkv.connectors.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"socket": socket, "autostart": False},
    }
    engine = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=longest,
        max_num_batched_tokens=chunk,
        max_num_seqs=256,
        kv_cache_memory_bytes=kv_bytes,
        block_size=block,
        enforce_eager=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
        kv_transfer_config=connector if socket is None else transfer,
    )
    core = engine.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    hidden = runner.model_config.get_hidden_size()

    def pause(input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
        before = positions.sum().item() / ATTENDED
        time.sleep((len(input_ids) + before) * token_us / 1e6)
        return torch.zeros(len(input_ids), hidden, dtype=torch.bfloat16)

    runner._model_forward = pause  # noqa: SLF001 - the one place where it computes
    _rest_between_steps(core)
    return engine


def _rest_between_steps(core: Any) -> None:
    """Sleep after a step without work, as a server's core process does; in one process vLLM keeps a core busy."""
    post_step = core.post_step

    def rest(*, model_executed: bool) -> None:
        post_step(model_executed=model_executed)
        if not model_executed and core.scheduler.has_requests():
            time.sleep(IDLE_STEP_S)

    core.post_step = rest


def params_of(tokens: int) -> SamplingParams:
    """Return parameters for exactly so many tokens."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
