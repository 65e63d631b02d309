"""Which KV-cache groups this shim can carry: derived from vLLM's own specs, refused by name otherwise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tierkv.connectors.vllm import compat

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

#: Source dtypes that are stored canonically, by their name in the `register` frame.
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
}


@dataclass(frozen=True)
class Group:
    """One KV-cache group. A block holds `block_tokens` tokens of every layer; sizes in elements unless named bytes.

    Per layer and rank a block has the logical shape (heads, block_tokens, dim_k + dim_v): K's vector first, then V's.
    """

    index: int
    layer_names: tuple[str, ...]
    block_tokens: int
    heads: int
    dim_k: int
    dim_v: int
    dtype: torch.dtype

    @property
    def layer_bytes(self) -> int:
        """Bytes of one block in one layer."""
        return self.heads * self.block_tokens * (self.dim_k + self.dim_v) * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of this rank."""
        return self.layer_bytes * len(self.layer_names)

    def registration(self) -> dict[str, int | str]:
        """Describe the group for the `register` frame: a slot holds (layer, head, token, K|V), densely."""
        item = self.dtype.itemsize
        token_stride = (self.dim_k + self.dim_v) * item
        return {
            "group": self.index,
            "class": "kv",
            "layout": "attention",
            "dtype": DTYPE_NAMES[self.dtype],
            "tokens": self.block_tokens,
            "layers": len(self.layer_names),
            "heads": self.heads,
            "dim_k": self.dim_k,
            "dim_v": self.dim_v,
            "layer_bytes": self.layer_bytes,
            "key_offset": 0,
            "value_offset": self.dim_k * item,
            "head_stride": self.block_tokens * token_stride,
            "token_stride": token_stride,
        }


def read_groups(config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> list[Group]:
    """Give the engine's groups, or raise ValueError naming the layer, its spec and the way out."""
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name) > 1:
            raise ValueError(
                f"tierKV does not support {name} = {getattr(parallel, name)}; set it to 1"
            )
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        raise ValueError(
            f"tierKV supports models with one KV-cache group (full attention); this model has "
            f"{len(groups)} groups: {kinds}. "
            "Start vLLM without --kv-transfer-config for it"
        )
    return [_read_group(index, group) for index, group in enumerate(groups)]


def _read_group(index: int, group: Any) -> Group:
    spec = group.kv_cache_spec
    where = f"KV-cache group {index} ({group.layer_names[0]} and {len(group.layer_names) - 1} more layers)"
    kind = type(spec).__name__
    if kind != "FullAttentionSpec":
        raise ValueError(
            f"{where}: tierKV does not support {kind} yet; start vLLM without --kv-transfer-config for this model"
        )
    if spec.dtype not in DTYPE_NAMES:
        raise ValueError(
            f"{where}: tierKV does not support KV dtype {spec.dtype} yet; use --kv-cache-dtype auto"
        )
    for name in ("sliding_window", "attention_chunk_size"):
        if getattr(spec, name) is not None:
            raise ValueError(f"{where}: tierKV does not support {name} = {getattr(spec, name)} yet")
    if spec.num_heads != spec.num_kv_heads or compat.tokens_per_state(spec) != 1:
        raise ValueError(
            f"{where}: tierKV does not support packed KV pages yet (head slots {spec.num_heads})"
        )
    return Group(
        index=index,
        layer_names=tuple(group.layer_names),
        block_tokens=spec.block_size,
        heads=spec.num_kv_heads,
        dim_k=spec.head_size,
        dim_v=spec.head_size_v,
        dtype=spec.dtype,
    )
