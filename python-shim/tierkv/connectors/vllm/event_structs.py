"""Owns the shape of vLLM's KV-cache events, and what of an engine they need."""

from typing import Any, Final

from vllm.distributed import kv_events
from vllm.v1 import kv_cache_interface
from vllm.v1.core import kv_cache_utils


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
    hashes: list[bytes],
    parent: bytes | None,
    tokens: list[int],
    *,
    block_tokens: int,
    group: int,
    kind: str | None,
) -> Any:
    """Say that a vault holds blocks that follow each other."""
    outside = kv_cache_utils.maybe_convert_block_hash
    fields = {
        "block_hashes": [outside(block_hash) for block_hash in hashes],
        "parent_block_hash": None if parent is None else outside(parent),
        "token_ids": tokens,
        "block_size": block_tokens,
        "lora_id": None,
        "lora_name": None,
        "group_idx": group,
        "kv_cache_spec_kind": kind,
    }
    return _event(kv_events.BlockStored, fields)


def naming_event(name: tuple[Any, ...], *, block_tokens: int, group: int, kind: str | None) -> Any:
    """Say by what vaults know this engine's blocks, in an event of no blocks: others hear of none by it.

    `name`: `tierkv`, then namespace, shards and root of the hashes; nothing but `tierkv` where no vault can be reached.
    """
    fields = {
        "block_hashes": [],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": block_tokens,
        "lora_id": None,
        "lora_name": None,
        "extra_keys": [name],
        "group_idx": group,
        "kv_cache_spec_kind": kind,
    }
    return _event(kv_events.BlockStored, fields)


def removed_event(hashes: list[bytes], group: int) -> Any:
    """Say that no vault holds blocks any more."""
    outside = kv_cache_utils.maybe_convert_block_hash
    fields = {"block_hashes": [outside(block_hash) for block_hash in hashes], "group_idx": group}
    return _event(kv_events.BlockRemoved, fields)
