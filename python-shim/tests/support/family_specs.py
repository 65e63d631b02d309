"""Owns what vLLM's own models of each family ask of a KV cache: built without weights, by their tiny configurations.

A program, because vLLM builds models once a process: prints, by family, specs and what became of each group.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
from vllm.v1.worker.workspace import init_workspace_manager

sys.path.insert(0, str(Path(__file__).parents[2]))

from tierkv.connectors.vllm.pages.specs import read_groups

from tests.support.layouts import BLOCKS, NAMES, check_round_trip, lay_out

Json = dict[str, Any]

_SIZES: Final[Json] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
}
_PLAIN: Final = {**_SIZES, "num_key_value_heads": 2, "head_dim": 64}
_WINDOWS: Final = {**_PLAIN, "sliding_window": 64}
_EXPERTS: Final = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
_HEADS: Final = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_LATENT: Final = {
    **_SIZES,
    **_EXPERTS,
    **_HEADS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_INDEX: Final = {"index_topk": 64, "index_n_heads": 4, "index_head_dim": 128}
_COMPRESSED: Final = {
    **_SIZES,
    **_EXPERTS,
    **_INDEX,
    "hidden_size": 512,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 64,
    "o_lora_rank": 64,
    "o_groups": 2,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128, 4],
    "compress_rope_theta": 10000.0,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 4,
    "num_hash_layers": 0,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "swiglu_limit": 7.0,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
}
_DELTA: Final = {
    **_SIZES,
    **_HEADS,
    "head_dim": 64,
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "mla_use_nope": True,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 64,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
        "num_heads": 4,
        "head_dim": 64,
        "short_conv_kernel_size": 4,
    },
}
#: Family -> `model_type`, class, configuration, tokens of a block.
FAMILIES: Final[dict[str, tuple[str, str, Json, int]]] = {
    "DeepSeek-V3": ("deepseek_v3", "DeepseekV3ForCausalLM", _LATENT, 16),
    "DeepSeek-V4": ("deepseek_v4", "DeepseekV4ForCausalLM", _COMPRESSED, 256),
    "Kimi-K2": ("kimi_k2", "DeepseekV3ForCausalLM", _LATENT, 16),
    "Kimi-K3": ("kimi_linear", "KimiLinearForCausalLM", _DELTA, 16),
    "GLM-5": ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {**_LATENT, **_INDEX}, 64),
    "Gemma 3": (
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_WINDOWS, "layer_types": ["sliding_attention", "full_attention"] * 2},
        16,
    ),
    "Gemma 4": ("gemma4_text", "Gemma4ForCausalLM", _WINDOWS, 16),
    "Qwen3.5": ("qwen3_5_text", "Qwen3_5ForCausalLM", _PLAIN, 16),
    "Llama 4": (
        "llama4_text",
        "Llama4ForCausalLM",
        {
            **_PLAIN,
            "num_local_experts": 2,
            "intermediate_size_mlp": 256,
            "attention_chunk_size": 64,
        },
        16,
    ),
    "gpt-oss": (
        "gpt_oss",
        "GptOssForCausalLM",
        {**_WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
        16,
    ),
}
#: Pages of several sizes in one block go one way only.
_LAYOUT: Final = KVCacheLayout.BLHNC
_SPARSE: Final = "vllm.v1.attention.backends.mla.flashmla_sparse.FlashMLASparseBackend"


class _NoStream:
    """Stands for a stream of a GPU, of which a model keeps one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def main() -> None:
    """Print one line of JSON."""
    _offer_sparse_attention()
    vars(torch.cuda)["Stream"] = _NoStream
    init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
    init_workspace_manager(torch.device("cpu"))
    told = {}
    for name, (kind, architecture, config, tokens) in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            said = {"architectures": [architecture], "model_type": kind, "dtype": "bfloat16"}
            Path(folder, "config.json").write_text(json.dumps({**config, **said}))
            told[name] = _family(folder, tokens)
    sys.stdout.write(f"{json.dumps(told)}\n")


def _offer_sparse_attention() -> None:
    """The platform of CPUs has no backend for it; what is kept is the GPU's."""
    platform = type(current_platform)
    own = platform.get_attn_backend_cls

    def choose(_: type, /, selected_backend: Any, attn_selector_config: Any, **more: Any) -> str:
        if attn_selector_config.use_sparse:
            return _SPARSE
        return str(own(selected_backend, attn_selector_config, **more))

    platform.get_attn_backend_cls = classmethod(choose)


def _family(folder: str, tokens: int) -> Json:
    engine = EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=512,
        enforce_eager=True,
        block_size=tokens,
        enable_prefix_caching=False,  # vLLM turns it off for latents on a CPU
    ).create_engine_config()
    cache = engine.cache_config
    cache.enable_prefix_caching, cache.kv_cache_layout = True, _LAYOUT.name
    cache.mamba_cache_mode = "align"
    with set_current_vllm_config(engine):
        ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"):
            initialize_model(engine)
        specs = get_kv_cache_spec(engine)
        groups = get_kv_cache_groups(engine, specs)
    for spec in specs.values():
        _there_and_back(engine, spec)
    read = read_groups(engine, _config(groups, tokens))
    return {
        "specs": sorted({type(spec).__name__ for spec in specs.values()}),
        "layers": len(specs),
        "kept": [[group.record_class, group.tail > 0, len(group.layer_names)] for group in read],
    }


def _config(groups: list[KVCacheGroupSpec], tokens: int) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups, hash_block_size=tokens
    )


def _there_and_back(engine: Any, spec: KVCacheSpec) -> None:
    group = KVCacheGroupSpec(layer_names=NAMES, kv_cache_spec=spec)
    (read,) = read_groups(engine, _config([group], spec.block_size))
    raw, tensors = lay_out(spec, _LAYOUT)
    if not read.is_opaque:
        tensors = {name: view.view(read.dtype) for name, view in tensors.items()}
    check_round_trip(read, raw, tensors)


if __name__ == "__main__":
    main()
