"""Reads what vLLM's own request fields say to a KV cache (0.32 and later): `session_id` and `kv_hints`."""

from collections.abc import Mapping
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat

#: Type and version of the actions in `kv_hints` whose payload is what `kv_transfer_params.tierkv` holds.
_TYPE: Final = "tierkv"
_VERSION: Final = "1"


def said_by(request: Any) -> dict[str, Any]:
    """Give options of `kv_hints` in tierKV's own terms; a later action overrides."""
    said: dict[str, Any] = {}
    for action in compat.hint_actions(request)[: limits.HINT_ACTIONS_MAX]:
        is_ours = (action.action_type, action.action_version) == (_TYPE, _VERSION)
        if is_ours and isinstance(action.payload, Mapping):
            said |= action.payload
    return said
