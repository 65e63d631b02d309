"""Owns what a client asks of one request through vLLM's `kv_transfer_params`, and what the answer carries then."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tierkv.connectors.vllm import limits

#: More tokens than any request has.
ALL_TOKENS: Final = 1 << 62
#: Key of ours in `kv_transfer_params`, of the request and of the answer.
KEY: Final = "tierkv"
#: vLLM's own names (its OffloadingConnector): tokens restored beyond the engine's own, tokens from the start saved.
_LOAD: Final = "max_load_tokens"
_SAVE: Final = "max_offload_tokens"
#: What may stand in the map under `KEY`: whether the answer says what came of it ...
_REPORT: Final = "report"
#: ... and names a signed receipt of it ...
_RECEIPT: Final = "receipt"
#: ... the conversation it belongs to, how long that is kept from now on, or for the longest time, or that it is over.
_SESSION: Final = "session"
_KEEP: Final = "keep_s"
_CACHE_CONTROL: Final = "cache_control"
_PIN: Final = "pin"
_RELEASE: Final = "release"
#: What Anthropic's API says for how long, and its time without a word, in seconds.
_TTLS: Final = {"5m": 300, "1h": 3600}
_TTL_UNSAID: Final = "5m"
#: ... and a prompt's hand-off between engines: `true` asks to be told of it, a map names what another one told.
_HANDOFF: Final = "handoff"
_BLOCK_TOKENS: Final = "block_tokens"
_HANDOFF_KEY: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Handoff:
    """The first `tokens` tokens of a prompt, as saved by another engine; `key`: a digest of what they are.

    `block_tokens`: the length of its blocks, where others may cut them; 0: not said.
    """

    tokens: int
    key: str
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request may load and save, in tokens; `ignored` names what was said and not understood.

    `session`: the conversation it belongs to; `keep_s`: how long its blocks are kept from now on, 0: as before;
    `tells`: its answer is to name what another engine can restore; `handoff`: what such an answer named;
    `wants_receipt`: the sidecar is to sign what was restored.
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
    """Read a request's wish; what is wrong in it is ignored, because a cache fails no request."""
    params = request.kv_transfer_params
    if not params:
        return NO_WISH
    ours = params.get(KEY)
    is_map = isinstance(ours, Mapping)
    said = ours if is_map else {}
    session = _name(said.get(_SESSION)) or ""
    parsers = _PARSERS | (_OF_SESSION if session else {})
    read = {name: parsers[name](value) if name in parsers else None for name, value in said.items()}
    ignored = [f"{KEY}.{name}"[:64] for name, value in read.items() if value is None][:16]
    ignored += [KEY] if ours is not None and not is_map else []
    tokens = {name: _count(params.get(name)) for name in (_LOAD, _SAVE)}
    ignored += [name for name in tokens if tokens[name] is None and params.get(name) is not None]
    load, save = tokens.values()
    # Without a time of its own a pin holds for the longest one.
    pinned_s = limits.KEEP_S_MAX if read.get(_PIN) else 0
    handoff = read.get(_HANDOFF)
    return Wish(
        load_tokens=ALL_TOKENS if load is None else load,
        save_tokens=ALL_TOKENS if save is None else save,
        # What an engine told is passed on as it is, and asks for nothing by itself.
        is_reported=is_map and said.get(_REPORT, set(said) != {_HANDOFF}) is not False,
        session=session,
        keep_s=read.get(_KEEP) or read.get(_CACHE_CONTROL) or pinned_s,
        is_released=read.get(_RELEASE) is True,
        tells=handoff is True,
        handoff=handoff if isinstance(handoff, Handoff) else None,
        wants_receipt=read.get(_RECEIPT) is True,
        ignored=tuple(ignored),
    )


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _name(value: Any) -> str | None:
    """Give a name that can be shown, too: a lone surrogate of JSON cannot even be encoded."""
    is_shown = isinstance(value, str) and value.isprintable()
    is_sound = is_shown and 0 < len(value.encode()) <= limits.SESSION_NAME_BYTES_MAX
    return value if is_sound else None


def _keep_s(value: Any) -> int | None:
    seconds = _count(value) or 0
    return seconds if 0 < seconds <= limits.KEEP_S_MAX else None


def _ttl_s(value: Any) -> int | None:
    """Read `{"type": "ephemeral", "ttl": "1h"}` as Anthropic's API has it; None for what is no such thing."""
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


#: By name, what reads a value; it gives None for a wrong one.
_PARSERS: Final[dict[str, Callable[[Any], Any]]] = {
    _REPORT: _flag,
    _RECEIPT: _flag,
    _SESSION: _name,
    _HANDOFF: _handoff,
}
#: The same of what means nothing without a session.
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
    """What one request was given over all its admissions; `computed_ms`: what computing that would have taken."""

    tokens: int = 0
    host_tokens: int = 0
    waited_s: float = 0.0
    compute_ms: int | None = 0


def answer(
    wish: Wish, given: Given, why: str, told: Handoff | None = None, receipt: str = ""
) -> dict[str, Any] | None:
    """Give what `kv_transfer_params` of the answer carries; None where nobody asked for it.

    `told`: what another engine can restore of it. `receipt`: what the sidecar calls the receipt of it.
    `why`: why nothing, or no more, was restored. `saved_ms` is a
    forecast less a measurement, and may be below 0.
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
