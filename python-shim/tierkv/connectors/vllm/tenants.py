"""Whose blocks are whose: a tenant is a `cache_salt`, known to everybody else by a number."""

import hmac
from functools import lru_cache
from typing import Any

from tierkv.connectors.vllm import limits

_DOMAIN = b"tierkv tenant"
# A JavaScript number holds it exactly.
_ID_BYTES = 6


def tenant_of(request: Any) -> int:
    """Give the number of a request's tenant: 0 without a `cache_salt`, else below 2**48, the same for equal salts.

    It says whose share of a vault a block counts against. Blocks are kept apart by their hashes, of which vLLM makes
    the salt a part (v1/core/kv_cache_utils.py, `generate_block_hash_extra_keys`).
    """
    salt = request.cache_salt
    return _number(salt) if salt else 0


@lru_cache(maxsize=limits.TENANTS_REMEMBERED)
def _number(salt: str) -> int:
    digest = hmac.digest(_DOMAIN, salt.encode(), "sha256")
    return int.from_bytes(digest[:_ID_BYTES], "little") or 1
