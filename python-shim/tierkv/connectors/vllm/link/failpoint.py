"""Owns the shim's failpoints: where tests make a step fail, wait or crash; armed by TIERKV_FAILPOINTS."""

import logging
import os
import re
import signal
import time
from dataclasses import dataclass

log = logging.getLogger("tierkv.shim")

VARIABLE = "TIERKV_FAILPOINTS"

#: Every failpoint of the shim, with the state of things there. None can change a byte, because none gives a value.
FAILPOINTS = {
    "shim.frame.read": "a frame of the sidecar has come; nobody has looked at it",
    "shim.load.copy": "a load is admitted and its blocks are given; nothing is copied in",
    "shim.step.begun": "vLLM has bound a step; its forward comes next",
    "shim.save.copied": "blocks are copied into their slots; the sidecar is not told",
}
#: Prefixes of other processes' failpoints, which share the variable.
_OTHERS = ("sidecar.", "vault.")
#: `[count*]action[(ms)]`, as in tikv's fail crate; without a count: for ever. Six digits of ms are 17 minutes.
_TERM = re.compile(r"(?:(\d{1,6})\*)?(?:(off|return|abort)|sleep\((\d{1,6})\))")


@dataclass
class _Term:
    action: str
    ms: int
    left: float


_armed: dict[str, list[_Term]] = {}


def arm(text: str | None) -> int:
    """Arm what `text` names (`name=3*off->1*return;name=sleep(50)`), loudly; give how many. None or "" arms none.

    Raises ValueError, with the fix, for an unknown name or action.
    """
    _armed.clear()
    for part in filter(None, (piece.strip() for piece in (text or "").split(";"))):
        name, _, terms = part.partition("=")
        if name.strip().startswith(_OTHERS):
            continue
        if name.strip() not in FAILPOINTS:
            raise ValueError(f'{VARIABLE} = {text}: there is no failpoint "{name}"; unset it')
        _armed[name.strip()] = [_parse(text, term.strip()) for term in terms.split("->")]
    if _armed:
        log.error(
            "tierKV: FAILPOINTS ARE ARMED (%s): this engine's cache fails, waits and ends on purpose; "
            "unset %s and start it again",
            text,
            VARIABLE,
        )
    return len(_armed)


def _parse(text: str | None, term: str) -> _Term:
    found = _TERM.fullmatch(term)
    if found is None:
        raise ValueError(f'{VARIABLE} = {text}: "{term}" is no action; unset it')
    count, action, ms = found.groups()
    return _Term(action or "sleep", int(ms or 0), float(count or "inf"))


def fails(name: str) -> bool:
    """Tell whether the step at `name` must fail; an armed wait or crash happens here."""
    if not _armed:
        return False
    term = next((term for term in _armed.get(name, []) if term.left > 0), None)
    if term is None:
        return False
    term.left -= 1
    if term.action == "off":
        return False
    log.warning("tierKV: failpoint %s acts: %s", name, term.action)
    if term.action == "abort":
        os.kill(os.getpid(), signal.SIGKILL)
    if term.action == "sleep":
        time.sleep(term.ms / 1000)
    return term.action == "return"
