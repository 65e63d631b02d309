"""Derives the KV-cache groups this shim can carry from vLLM's own specs, and refuses others by name."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.link.messages import attention_layout, opaque_layout
from tierkv.connectors.vllm.link.settings import Form
from tierkv.connectors.vllm.pages.states import StatePart, state_parts

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from tierkv.connectors.vllm.link.frames import Frame

log = logging.getLogger("tierkv.shim")

#: Source dtypes that are stored canonically, by their name in the `register` frame.
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float32: "f32",
}


@dataclass(frozen=True)
class Group:
    """One KV-cache group. A block holds `block_tokens` tokens of every layer; sizes in elements unless named bytes.

    Canonical: per layer and rank a block has the logical shape (heads, block_tokens, dim_k + dim_v), K's vector first,
    then V's. Opaque (`page_bytes` given): per layer the bytes of the engine's own page; `page_format` names all that
    gives them meaning. `tail`: how many of its last blocks a boundary needs; 0: all before it. `may_skip`: vLLM
    may leave some of them out as unreachable, by its own rule. `parts`: by layer, where states take another form
    in a slot than in the engine.
    """

    index: int
    layer_names: tuple[str, ...]
    block_tokens: int
    heads: int = 0
    dim_k: int = 0
    dim_v: int = 0
    dtype: torch.dtype = torch.uint8
    record_class: str = "kv"
    tail: int = 0
    page_bytes: tuple[int, ...] = ()
    page_format: str = ""
    may_skip: bool = False
    parts: tuple[tuple[StatePart, ...], ...] = ()

    @property
    def is_opaque(self) -> bool:
        """Tell whether pages are stored as the engine holds them."""
        return bool(self.page_bytes)

    @property
    def is_state(self) -> bool:
        """Tell whether a block is a recurrent state at its end, rather than its tokens' own KV."""
        return self.record_class == "ssm"

    @property
    def layer_bytes(self) -> int:
        """Bytes of one block in one canonical layer."""
        return self.heads * self.block_tokens * (self.dim_k + self.dim_v) * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of this rank."""
        return sum(self.slot_bytes) or self.layer_bytes * len(self.layer_names)

    @property
    def slot_bytes(self) -> tuple[int, ...]:
        """Bytes of one block of each opaque layer in a slot."""
        if not self.parts:
            return self.page_bytes
        return tuple(sum(part.slot_bytes for part in parts) for parts in self.parts)

    def registration(self) -> "Frame":
        """Describe the group for the `register` frame."""
        common = {
            "group": self.index,
            "class": self.record_class,
            "tokens": self.block_tokens,
            "tail": self.tail,
        }
        if self.is_opaque:
            # Layers of different size count as one.
            layers = len(self.slot_bytes) if len(set(self.slot_bytes)) == 1 else 1
            return {**common, **opaque_layout(layers, self.block_bytes // layers)}
        shape = attention_layout(
            DTYPE_NAMES[self.dtype],
            self.dtype.itemsize,
            layers=len(self.layer_names),
            heads=self.heads,
            tokens=self.block_tokens,
            dim_k=self.dim_k,
            dim_v=self.dim_v,
        )
        return {**common, **shape}


def read_groups(
    config: "VllmConfig", kv_cache_config: "KVCacheConfig", states: Form = "raw"
) -> list[Group]:
    """Give the engine's groups, or raise ValueError naming the layer, its spec and the way out.

    `states`: the form that recurrent states are to take.

    No group: the engine runs untouched. So does a model without a KV cache, and an engine whose prefix caching is off:
    vLLM turns it off itself where a backend cannot compute on from cached tokens.
    """
    if not config.cache_config.enable_prefix_caching:
        log.warning(
            "tierKV: prefix caching is off in this engine (--no-enable-prefix-caching, or vLLM's choice for the model "
            "on this machine), so nothing is saved or restored"
        )
        return []
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name) > 1:
            raise ValueError(
                f"tierKV does not support {name} = {getattr(parallel, name)}; set it to 1"
            )
    groups = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        by_layer = compat.specs_by_layer(group.kv_cache_spec, group.layer_names)
        specs = {name: by_layer[name] for name in group.layer_names}
        kind = type(group.kv_cache_spec).__name__
        untouched = _why_untouched(group, list(specs.values()))
        if untouched is not None:
            log.warning(
                "tierKV: KV-cache group %d (%s) %s: nothing is saved or restored in this engine",
                index,
                kind,
                untouched,
            )
            return []
        if all(_is_kind(spec, _ENCODER) for spec in specs.values()):
            log.info("tierKV: KV-cache group %d (%s) is left alone: it keeps nothing", index, kind)
        elif compat.is_left_out(kv_cache_config, index):
            log.info(
                "tierKV: KV-cache group %d (%s) is left alone: vLLM keeps it out of prefix caching",
                index,
                kind,
            )
        else:
            page_format = compat.page_format(config, kv_cache_config)
            groups.append(_in_form(_read_group(index, specs, page_format), specs, states))
    return groups


def _is_kind(spec: Any, name: str) -> bool:
    """Tell whether a spec is of a class of vLLM's, or derived from it."""
    return any(base.__name__ == name for base in type(spec).__mro__)


def _why_untouched(group: Any, specs: list[Any]) -> str | None:
    """Give why a group forbids any restore in this engine; None if it does not."""
    if any(_is_kind(spec, _CROSS) for spec in specs):
        return "belongs to an encoder's output, which block hashes do not name"
    if compat.is_host_resident(group):
        return "lives in host memory, whose blocks vLLM counts apart"
    if any(compat.sees_later_tokens(spec) for spec in specs):
        return "attends to later tokens, so a prefix does not determine its blocks"
    return None


def _read_group(index: int, specs: Mapping[str, Any], page_format: str) -> Group:
    names = tuple(specs)
    where = f"KV-cache group {index} ({names[0]} and {len(names) - 1} more layers)"
    tails = {_tail(spec, where) for spec in specs.values()}
    if len(tails) > 1:
        raise ValueError(f"{where}: tierKV does not support layers of several kinds in one group")
    (tail,) = tails
    spec = specs[names[0]]
    if (
        type(spec).__name__ in _PLAIN
        and _is_plain(spec)
        and len(set(map(repr, specs.values()))) == 1
    ):
        return Group(
            index=index,
            layer_names=names,
            block_tokens=spec.block_size,
            heads=spec.num_kv_heads,
            dim_k=spec.head_size,
            dim_v=spec.head_size_v,
            dtype=spec.dtype,
            tail=tail,
        )
    known = any(_is_kind(spec, name) for name in _KNOWN)
    if not known:
        log.warning(
            "tierKV: %s: %s is unknown; its pages are kept as they are",
            where,
            compat.full_name(spec),
        )
        page_format = f"{page_format} {compat.full_name(spec)}"
    return Group(
        index=index,
        layer_names=names,
        block_tokens=spec.block_size,
        record_class="ssm" if _is_kind(spec, _STATE) else "kv",
        tail=tail,
        page_bytes=tuple(compat.content_bytes(specs[name]) for name in names),
        page_format=f"{page_format} {[repr(specs[name]) for name in names]}",
        may_skip=not known,
    )


def _in_form(group: Group, specs: Mapping[str, Any], form: Form) -> Group:
    """Give a group with its states in a form; unchanged if no state takes it."""
    if form == "raw" or not group.is_state:
        return group
    parts = tuple(state_parts(spec, form) for spec in specs.values())
    if not all(parts):
        return group
    return replace(group, parts=parts, page_format=f"{group.page_format} states {form}")


_STATE = "MambaSpec"
_CROSS = "CrossAttentionSpec"
_ENCODER = "EncoderOnlyAttentionSpec"
_FULL = "FullAttentionSpec"
_WINDOW = "SlidingWindowSpec"
_CHUNK = "ChunkedLocalAttentionSpec"
#: Kinds whose reach is known, for themselves and derived classes.
_KNOWN: tuple[str, ...] = (_FULL, _WINDOW, _CHUNK, _STATE)
#: Kinds whose pages hold one K and one V vector per head and token by default.
_PLAIN: tuple[str, ...] = (_FULL, _WINDOW, _CHUNK)


def _tail(spec: Any, where: str) -> int:
    """Give how many of a layer's last blocks a boundary needs (0: all); ValueError for a kind we cannot carry.

    An unknown kind needs all blocks that vLLM does not leave out itself.
    """
    if _is_kind(spec, _WINDOW):
        # The next token attends to the window's other tokens; drafts need some more.
        reach = spec.sliding_window - 1 + compat.retained_tokens(spec)
        return max(1, int(-(-reach // spec.block_size)))
    if _is_kind(spec, _CHUNK):
        return int(-(-spec.attention_chunk_size // spec.block_size))
    if _is_kind(spec, _STATE):
        _check_state(spec, where)
        return 1
    if not _is_kind(spec, _FULL) and compat.tokens_per_state(spec) <= 0:
        raise ValueError(
            f"{where}: tierKV does not support {compat.full_name(spec)}: it keeps a state of the whole sequence, and "
            "vLLM hands over those of MambaSpec only; start vLLM without --kv-transfer-config for this model"
        )
    return 0


def _check_state(spec: Any, where: str) -> None:
    if not compat.hands_off_states():
        raise ValueError(
            f"{where}: vLLM {compat.vllm_version()} does not support handing recurrent states at block boundaries to a "
            "connector; use vllm>=0.29, or start it without --kv-transfer-config for this model"
        )
    if spec.mamba_cache_mode != "align":
        raise ValueError(
            f"{where}: tierKV does not support --mamba-cache-mode {spec.mamba_cache_mode}; use "
            "--enable-prefix-caching --mamba-cache-mode align"
        )


def _is_plain(spec: Any) -> bool:
    """Tell whether a page holds plain K and V vectors: no codes, no scales, no packing."""
    return (
        spec.dtype in DTYPE_NAMES
        and spec.num_heads == spec.num_kv_heads
        and compat.tokens_per_state(spec) == 1
        and spec.state_content_bytes is None
        and not spec.kv_quant_mode
    )
