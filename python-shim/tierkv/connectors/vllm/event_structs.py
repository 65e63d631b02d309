"""Owns the shape of vLLM's KV-cache events, and what of an engine they need."""

from collections.abc import Sequence
from typing import Any, Final

from vllm.distributed import kv_events
from vllm.v1 import kv_cache_interface
from vllm.v1.core import kv_cache_utils

from tierkv.connectors.vllm.specs import Group


def hashes_more(request: Any) -> bool:
    """Tell whether a request's block hashes name more than its tokens (a salt, pictures)."""
    return bool(request.cache_salt or request.mm_features)


def spec_kinds(kv_cache_config: Any) -> dict[int, str]:
    """Give vLLM's word for each group's kind of attention."""
    kind = kv_cache_interface.get_kv_cache_spec_kind
    groups = kv_cache_config.kv_cache_groups
    return {index: kind(group.kv_cache_spec).value for index, group in enumerate(groups)}


#: Where a vault is, as events say it: not on the publisher's machine, in a tier of ours.
_TIER: Final = {"medium": "STORAGE", "locality": "REMOTE", "ownership": "tierkv"}


def _event(kind: Any, fields: dict[str, Any]) -> Any:
    known = kind.__struct_fields__  # `ownership` came with 0.30
    return kind(**{name: value for name, value in {**fields, **_TIER}.items() if name in known})


def stored_event(
    group: Group,
    kind: str | None,
    hashes: Sequence[bytes] = (),
    parent: bytes | None = None,
    tokens: Sequence[int] = (),
    *,
    name: tuple[Any, ...] | None = None,
) -> Any:
    """Say that a vault holds blocks that follow each other; `kind`: vLLM's word for their attention.

    With a `name`, of no blocks, so that others hear of none by it: by what vaults know this engine's. That is
    `tierkv`, then namespace, shards and root of the hashes; nothing but `tierkv` where no vault can be reached.
    """
    outside = kv_cache_utils.maybe_convert_block_hash
    fields = {
        "block_hashes": [outside(block_hash) for block_hash in hashes],
        "parent_block_hash": None if parent is None else outside(parent),
        "token_ids": list(tokens),
        "block_size": group.block_tokens,
        "lora_id": None,
        "lora_name": None,
        "group_idx": group.index,
        "kv_cache_spec_kind": kind,
    }
    return _event(
        kv_events.BlockStored, fields if name is None else {**fields, "extra_keys": [name]}
    )


def removed_event(block_hash: bytes, group: Group) -> Any:
    """Say that no vault holds a block any more."""
    outside = kv_cache_utils.maybe_convert_block_hash
    fields = {"block_hashes": [outside(block_hash)], "group_idx": group.index}
    return _event(kv_events.BlockRemoved, fields)
