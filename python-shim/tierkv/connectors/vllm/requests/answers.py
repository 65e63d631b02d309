"""Owns the fields of `kv_transfer_params` that tierKV reads from a request and writes into its answer."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.requests.hints import said_by

#: More tokens than any request has.
ALL_TOKENS: Final = 1 << 62
#: tierKV's key in `kv_transfer_params`, in requests and answers.
KEY: Final = "tierkv"
#: vLLM's own names (its OffloadingConnector): tokens restored beyond the engine's own, tokens from the start saved.
_LOAD: Final = "max_load_tokens"
_SAVE: Final = "max_offload_tokens"
#: Key under `KEY`: whether the answer reports the restore.
_REPORT: Final = "report"
#: Key under `KEY`: whether the answer names a signed receipt of the restore.
_RECEIPT: Final = "receipt"
#: Keys under `KEY`: the request's session, how long it is kept (two spellings, or the maximum), and its end.
_SESSION: Final = "session"
_KEEP: Final = "keep_s"
_CACHE_CONTROL: Final = "cache_control"
_PIN: Final = "pin"
_RELEASE: Final = "release"
#: Lifetimes of Anthropic's `cache_control` in seconds, and the one implied without `ttl`.
_TTLS: Final = {"5m": 300, "1h": 3600}
_TTL_UNSAID: Final = "5m"
#: Key under `KEY`: a prompt's hand-off; `true` requests one in the answer, a map comes from another engine's answer.
_HANDOFF: Final = "handoff"
_BLOCK_TOKENS: Final = "block_tokens"
_HANDOFF_KEY: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Handoff:
    """The first `tokens` tokens of a prompt, saved by another engine; `key`: their digest.

    `block_tokens`: tokens of each of its blocks, if other engines may cut them; else 0.
    """

    tokens: int
    key: str
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of one request: tokens it may load and save; `ignored`: fields that were not understood.

    `session`: the request's conversation; `keep_s`: seconds its blocks are kept from now on, 0: unchanged;
    `tells`: the answer names what another engine can restore; `handoff`: the hand-off such an answer named;
    `wants_receipt`: the sidecar signs the restore.
    """

    load_tokens: int = ALL_TOKENS
    save_tokens: int = ALL_TOKENS
    is_reported: bool = False
    session: str = ""
    keep_s: int = 0
    is_released: bool = False
    tells: bool = False
    handoff: Handoff | None = None
    wants_receipt: bool = False
    ignored: tuple[str, ...] = ()


NO_WISH: Final = Wish()


def wish_of(request: Any) -> Wish:
    """Read a request's options; wrong values are ignored, because a cache fails no request."""
    given = request.kv_transfer_params
    params: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    hinted = said_by(request)
    named = compat.session_of(request)
    if not params and not hinted and named is None:
        return NO_WISH
    ours: Any = params.get(KEY, hinted or None)
    is_map = isinstance(ours, Mapping)
    said = {**hinted, **ours} if isinstance(ours, Mapping) else {}
    # A hand-off is passed on unchanged, so alone it requests no report.
    is_reported = is_map and said.get(_REPORT, set(said) != {_HANDOFF}) is not False
    said = said if named is None else {_SESSION: named, **said}
    session = _name(said.get(_SESSION)) or ""
    parsers = _PARSERS | (_OF_SESSION if session else {})
    read = {name: parsers[name](value) if name in parsers else None for name, value in said.items()}
    ignored = [_shown(f"{KEY}.{name}"[:64]) for name, value in read.items() if value is None][:16]
    ignored += [KEY] if ours is not None and not is_map else []
    tokens = {name: _count(params.get(name)) for name in (_LOAD, _SAVE)}
    ignored += [name for name in tokens if tokens[name] is None and params.get(name) is not None]
    load, save = tokens.values()
    # A pin without a lifetime gets the longest one.
    pinned_s = limits.KEEP_S_MAX if read.get(_PIN) else 0
    handoff = read.get(_HANDOFF)
    return Wish(
        load_tokens=ALL_TOKENS if load is None else load,
        save_tokens=ALL_TOKENS if save is None else save,
        is_reported=is_reported,
        session=session,
        keep_s=read.get(_KEEP) or read.get(_CACHE_CONTROL) or pinned_s,
        is_released=read.get(_RELEASE) is True,
        tells=handoff is True,
        handoff=handoff if isinstance(handoff, Handoff) else None,
        wants_receipt=read.get(_RECEIPT) is True,
        ignored=tuple(ignored),
    )


def drop_malformed(request: Any) -> bool:
    """Remove `kv_transfer_params` that are no map, for vLLM takes them for one; True where they were none.

    `vllm_xargs` may carry anything under that name.
    """
    params = request.kv_transfer_params
    if params is None or isinstance(params, Mapping):
        return False
    request.kv_transfer_params = None
    return True


def _shown(text: str) -> str:
    """Give text that can be encoded: JSON may hold a lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode()


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _name(value: Any) -> str | None:
    """Give a printable name, else None: JSON may hold a lone surrogate, which cannot be encoded."""
    is_shown = isinstance(value, str) and value.isprintable()
    is_sound = is_shown and 0 < len(value.encode()) <= limits.SESSION_NAME_BYTES_MAX
    return value if is_sound else None


def _keep_s(value: Any) -> int | None:
    seconds = _count(value) or 0
    return seconds if 0 < seconds <= limits.KEEP_S_MAX else None


def _ttl_s(value: Any) -> int | None:
    """Read `{"type": "ephemeral", "ttl": "1h"}` as Anthropic's API has it; None for anything else."""
    if not isinstance(value, Mapping) or value.get("type") != "ephemeral":
        return None
    ttl = value.get("ttl", _TTL_UNSAID)
    return _TTLS.get(ttl) if isinstance(ttl, str) else None


def _handoff(value: Any) -> Handoff | bool | None:
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping) or set(value) - {_BLOCK_TOKENS} != {"tokens", "key"}:
        return None
    tokens, block_tokens = _count(value["tokens"]), _count(value.get(_BLOCK_TOKENS, 0))
    key = value["key"]
    is_key = isinstance(key, str) and _HANDOFF_KEY.fullmatch(key)
    return (
        Handoff(tokens, key, block_tokens)
        if is_key and tokens and block_tokens is not None
        else None
    )


#: Parsers by key; each gives None for a wrong value.
_PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    _REPORT: _flag,
    _RECEIPT: _flag,
    _SESSION: _name,
    _HANDOFF: _handoff,
}
#: Parsers of keys that need a session.
_OF_SESSION: Final[dict[str, Callable[[Any], Any]]] = {
    _KEEP: _keep_s,
    _CACHE_CONTROL: _ttl_s,
    _PIN: _flag,
    _RELEASE: _flag,
}


def _named(told: Handoff) -> dict[str, Any]:
    blocks = {_BLOCK_TOKENS: told.block_tokens} if told.block_tokens else {}
    return {"tokens": told.tokens, "key": told.key, **blocks}


@dataclass(slots=True)
class Given:
    """Tokens one request was given over all its admissions; `compute_ms`: forecast of computing them, if known."""

    tokens: int = 0
    host_tokens: int = 0
    waited_s: float = 0.0
    compute_ms: int | None = 0


def answer(
    wish: Wish, given: Given, why: str, told: Handoff | None = None, receipt: str = ""
) -> dict[str, Any] | None:
    """Give the answer's `kv_transfer_params`; None where the client requested nothing.

    `told`: the hand-off for another engine. `receipt`: the receipt's name at the sidecar.
    `why`: the reason that nothing, or no more, was restored. `saved_ms` is a forecast less a
    measurement, and may be negative.
    """
    named = {} if told is None else {_HANDOFF: _named(told)}
    if not wish.is_reported:
        return {KEY: named} if named else None
    said: dict[str, Any] = {**named, "restored_tokens": given.tokens}
    if given.tokens:
        vault = given.tokens - given.host_tokens
        said["sources"] = {
            name: tokens
            for name, tokens in (("host", given.host_tokens), ("vault", vault))
            if tokens
        }
        said["waited_ms"] = round(given.waited_s * 1000, 1)
        if receipt:
            said[_RECEIPT] = receipt
        if given.compute_ms is not None:
            said["saved_ms"] = round(given.compute_ms - given.waited_s * 1000, 1)
    if why:
        said["why"] = why
    if wish.ignored:
        said["ignored"] = list(wish.ignored)
    return {KEY: said}
