"""Computes the namespace: the digest of everything that makes two engines' blocks comparable (docs/architecture.md)."""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tierkv.connectors.vllm.link.messages import PAGE_ORDER
from tierkv.connectors.vllm.pages.specs import DTYPE_NAMES, Group

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: Incremented when a stored block's meaning changes without a change of any ingredient.
KV_FORMAT_EPOCH: Final = 1
#: Hash algorithms whose collisions cannot be made on purpose (vLLM `--prefix-caching-hash-algo`).
_STRONG_HASHES: Final = ("sha256", "sha256_cbor")


@dataclass(frozen=True)
class Namespace:
    """`digest`: 32 bytes; `parts`: its ingredients, for people."""

    digest: bytes
    parts: dict[str, str]


def ingredients(config: "VllmConfig", groups: list[Group], hash_tokens: int) -> dict[str, str]:
    """Collect what the scheduler knows at start: how blocks are cut and hashed.

    Raises ValueError when the block hashes are too weak to name blocks shared between engines.
    """
    algorithm = str(config.cache_config.prefix_caching_hash_algo)
    if algorithm not in _STRONG_HASHES:
        raise ValueError(
            f"--prefix-caching-hash-algo {algorithm}: its hashes can be made to collide, so they cannot name shared "
            "blocks; use sha256_cbor (or sha256)"
        )
    parts = {
        "kv_format_epoch": str(KV_FORMAT_EPOCH),
        "hash": algorithm,
        **_cut(groups, hash_tokens),
    }
    forms = {part.form for group in groups for layer in group.parts for part in layer} - {"raw"}
    if forms:
        parts["states"] = " ".join(sorted(forms))
    if algorithm == "sha256":  # it hashes pickles, whose bytes depend on the interpreter
        parts["python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    return parts


def order_of(groups: Sequence[Group]) -> int:
    """Give the version of the order in which attention's records hold K and V; 0 where it is known of none."""
    is_known = any(group.record_class == "kv" and not group.is_opaque for group in groups)
    return PAGE_ORDER if is_known else 0


def finish(parts: dict[str, str], none_hash: bytes, fidelity: int) -> Namespace:
    """Add the ingredients known only at the first request, and digest.

    `fidelity`: 0 exact, else the id of the sidecar's lossy codec: engines of different fidelity never meet.
    """
    complete = {**parts, "none_hash": none_hash.hex(), "fidelity": str(fidelity)}
    return Namespace(digest_of(complete), complete)


def digest_of(complete: dict[str, str]) -> bytes:
    """Digest all ingredients of a name."""
    return hashlib.sha256(_canonical(complete)).digest()


def of_blocks(groups: Sequence[Group], tokens: int) -> dict[str, str]:
    """Give the ingredients on the cut of blocks, for an engine whose blocks have `tokens` tokens."""
    longer = [replace(group, block_tokens=tokens) for group in groups]
    return _cut(longer, tokens)


def _cut(groups: Sequence[Group], hash_tokens: int) -> dict[str, str]:
    described = _digest([_describe(group) for group in groups])
    return {"hash_block_size": str(hash_tokens), "groups": described}


def _describe(group: Group) -> dict[str, Any]:
    return {
        "index": group.index,
        "layers": list(group.layer_names),
        "tokens": group.block_tokens,
        "heads": group.heads,
        "dims": [group.dim_k, group.dim_v],
        "dtype": "opaque" if group.is_opaque else DTYPE_NAMES[group.dtype],
        "class": group.record_class,
        "tail": group.tail,
        "page_bytes": list(group.page_bytes),
        "page_format": group.page_format,
    }


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()
