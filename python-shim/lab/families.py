"""Owns what the model families of the seeded checkpoints are made of: configuration, tensor names and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab.checkpoint import Spec

#: Of Qwen3.5: every n-th layer is attention, the others keep a recurrent state.
ATTENTION_EVERY = 4
CONV_KERNEL = 4
#: Of DeepSeek-V2 and MiniCPM3: the latent vector of a token, and its part that carries the position.
LATENT_DIM = 512
ROPE_DIM = 64


@dataclass(frozen=True)
class Family:
    """A kind of model: its class, its `model_type`, what its configuration adds, and the weights of one layer."""

    architecture: str
    model_type: str
    config: Callable[[Spec], dict[str, Any]]
    layer: Callable[[Spec, int], Iterator[tuple[str, tuple[int, ...]]]]


def _mlp(spec: Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "mlp.gate_proj", (spec.mlp, spec.hidden)
    yield "mlp.up_proj", (spec.mlp, spec.hidden)
    yield "mlp.down_proj", (spec.hidden, spec.mlp)


def _attention(
    spec: Spec, *, normed: bool = False, gated: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    yield "self_attn.q_proj", (queries * (2 if gated else 1), spec.hidden)
    yield "self_attn.k_proj", (keys, spec.hidden)
    yield "self_attn.v_proj", (keys, spec.hidden)
    yield "self_attn.o_proj", (spec.hidden, queries)
    if normed:
        yield "self_attn.q_norm", (spec.head_dim,)
        yield "self_attn.k_norm", (spec.head_dim,)


def _plain_layer(spec: Spec, _: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm", (spec.hidden,)
    yield from _attention(spec, normed=spec.kind == "qwen3")
    yield "post_attention_layernorm", (spec.hidden,)
    yield from _mlp(spec)


def is_recurrent(layer: int) -> bool:
    """Tell whether a layer of Qwen3.5 keeps a recurrent state."""
    return (layer + 1) % ATTENTION_EVERY != 0


def _state(spec: Spec) -> tuple[int, int, int]:
    """Key heads, value heads and width of a recurrent layer."""
    return (
        spec.state_keys or spec.kv_heads,
        spec.state_values or spec.heads,
        spec.state_dim or spec.head_dim,
    )


def _hybrid_layer(spec: Spec, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm", (spec.hidden,)
    if is_recurrent(layer):
        key_heads, value_heads, dim = _state(spec)
        keys, values = key_heads * dim, value_heads * dim
        yield "linear_attn.dt_bias", (value_heads,)
        yield "linear_attn.A_log", (value_heads,)
        yield "linear_attn.conv1d", (2 * keys + values, 1, CONV_KERNEL)
        yield "linear_attn.norm", (dim,)
        yield "linear_attn.out_proj", (spec.hidden, values)
        yield "linear_attn.in_proj_qkv", (2 * keys + values, spec.hidden)
        yield "linear_attn.in_proj_z", (values, spec.hidden)
        yield "linear_attn.in_proj_b", (value_heads, spec.hidden)
        yield "linear_attn.in_proj_a", (value_heads, spec.hidden)
    else:
        yield from _attention(spec, normed=True, gated=True)
    yield "post_attention_layernorm", (spec.hidden,)
    yield from _mlp(spec)


def _hybrid_config(spec: Spec) -> dict[str, Any]:
    kinds = ("full_attention", "linear_attention")
    key_heads, value_heads, dim = _state(spec)
    return {
        "layer_types": [kinds[is_recurrent(layer)] for layer in range(spec.layers)],
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": dim,
        "linear_conv_kernel_dim": CONV_KERNEL,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
        },
    }


def _window_layer(spec: Spec, _: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "input_layernorm", (spec.hidden,)
    yield from _attention(spec, normed=True)
    yield "post_attention_layernorm", (spec.hidden,)
    yield "pre_feedforward_layernorm", (spec.hidden,)
    yield "post_feedforward_layernorm", (spec.hidden,)
    yield from _mlp(spec)


def _window_config(spec: Spec) -> dict[str, Any]:
    kinds = ("sliding_attention", "full_attention")
    return {
        "layer_types": [kinds[(n + 1) % spec.global_every == 0] for n in range(spec.layers)],
        "sliding_window": spec.window,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": spec.head_dim,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    }


def _latent_layer(spec: Spec, _: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    dim = spec.head_dim
    yield "input_layernorm", (spec.hidden,)
    yield "self_attn.q_proj", (spec.heads * (dim + ROPE_DIM), spec.hidden)
    yield "self_attn.kv_a_proj_with_mqa", (LATENT_DIM + ROPE_DIM, spec.hidden)
    yield "self_attn.kv_a_layernorm", (LATENT_DIM,)
    yield "self_attn.kv_b_proj", (spec.heads * 2 * dim, LATENT_DIM)
    yield "self_attn.o_proj", (spec.hidden, spec.heads * dim)
    yield "post_attention_layernorm", (spec.hidden,)
    yield from _mlp(spec)


def _latent_config(spec: Spec) -> dict[str, Any]:
    return {
        "num_key_value_heads": spec.heads,
        "kv_lora_rank": LATENT_DIM,
        "qk_rope_head_dim": ROPE_DIM,
        "qk_nope_head_dim": spec.head_dim,
        "v_head_dim": spec.head_dim,
        "q_lora_rank": None,
        "first_k_dense_replace": spec.layers,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }


def _nothing(_: Spec) -> dict[str, Any]:
    return {}


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", _nothing, _plain_layer),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", _nothing, _plain_layer),
    "qwen3_5": Family("Qwen3_5ForCausalLM", "qwen3_5_text", _hybrid_config, _hybrid_layer),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", _window_config, _window_layer),
    # Its heads of V have hidden / heads dimensions, whatever its configuration says, so `head_dim` must be that.
    "minicpm3": Family("MiniCPM3ForCausalLM", "minicpm3", _latent_config, _latent_layer),
    "deepseek_v2": Family("DeepseekV2ForCausalLM", "deepseek_v2", _latent_config, _latent_layer),
}
#: Tensors that are not matrices with a `.weight`, and what stands in them: a state that decays slowly.
BARE = {"dt_bias": 1.0, "A_log": -3.0}
