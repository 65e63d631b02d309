"""Finds the first token at which a prompt stops matching an earlier one; works beside the engine's thread."""

import logging
from array import array
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.messages import request_text
from tierkv.connectors.vllm.naming.markers import Markers
from tierkv.connectors.vllm.requests.requests import tenant_of

log = logging.getLogger("tierkv.shim")

#: Bytes of a token id: uint32, in the machine's order (little-endian on all that vLLM runs on).
_ID: Final = 4
#: Places behind the first difference, in tokens, at which the earlier prompt's text is searched for in the new one.
_NEEDLES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Kept:
    """A prompt, behind it the answer once it has ended. `tokens`: ids as uint32; `prompt`: the prompt's count.

    `tenant`: see `tenant_of`; `pictures`: first token and digest of each.
    """

    req: str
    tokens: bytes
    prompt: int
    tenant: int
    pictures: tuple[tuple[int, str], ...]

    @property
    def count(self) -> int:
        return len(self.tokens) // _ID


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where `new` stops matching `earlier`: `at` tokens are equal.

    `what`: `tokens`, or `salt` or `picture` where the tokens are equal and these are not. `gone`, `come`: tokens that
    were replaced and that replace them, where equal text follows, else 0. `same`: equal tokens behind them.
    `is_moved`: both prompts have the other's next part further behind.
    """

    earlier: Kept
    new: Kept
    what: str
    at: int
    gone: int = 0
    come: int = 0
    same: int = 0
    is_moved: bool = False


class Divergences:
    """Compares each prompt with the latest ones of this engine.

    Prompts are noted on the engine's thread, which keeps a reference only; the helper thread compares them.
    """

    def __init__(self, tokenizer: Markers, block_tokens: int) -> None:
        self._waiting: deque[tuple[Any, bool]] = deque(maxlen=limits.PROMPTS_COMPARED_MAX)
        self._kept: deque[Kept] = deque()
        self._kept_bytes = 0
        self._tokenizer = tokenizer
        self._markers: Collection[int] | None = None
        self._block_tokens = block_tokens
        self._is_off = False

    def note(self, request: Any, *, is_ended: bool = False) -> None:
        """Note an arrived request, to be compared, or an ended one, to be kept with its answer."""
        tokens = request.num_tokens
        if self._is_off or tokens <= self._block_tokens:
            return
        waiting = sum(one.num_tokens for one, _ in list(self._waiting))
        if waiting + tokens <= limits.PROMPT_TOKENS_WAITING_MAX:
            self._waiting.append((request, is_ended))

    def forget(self) -> None:
        """Forget prompts that wait to be compared, because no sidecar hears of them."""
        self._waiting.clear()

    def take(self) -> Frame:
        """Give the divergences found since the last call as a field of `counts`; empty without any. Never raises."""
        rows = []
        try:
            while self._waiting:
                request, is_ended = self._waiting.popleft()
                new = _kept(request, is_ended=is_ended)
                if new is None:
                    continue
                found = None if is_ended else self._compare(new)
                if found is not None:
                    rows.append(self._row(found))
                self._keep(new)
        except Exception:
            self._is_off = True
            self._waiting.clear()
            self._kept.clear()
            log.exception("tierKV: prompts are not compared any more; the engine goes on")
        return {"divergences": rows, "tokenizer": self._tokenizer.folder} if rows else {}

    def _compare(self, new: Kept) -> Divergence | None:
        """Compare with the prompt of the same tenant that begins most like it; another tenant's text is never shown."""
        best: tuple[int, Kept] | None = None
        salted: tuple[int, Kept] | None = None
        for earlier in reversed(self._kept):
            if earlier.req == new.req:
                continue
            equal = equal_tokens(earlier.tokens, new.tokens)
            if earlier.tenant != new.tenant:
                if equal >= self._block_tokens and (salted is None or equal > salted[0]):
                    salted = equal, earlier
            elif best is None or equal > best[0]:
                best = equal, earlier
        if salted is not None and (best is None or salted[0] > best[0]):
            return Divergence(salted[1], new, "salt", 0, same=salted[0])
        return None if best is None else diverge(best[1], new, best[0])

    def _keep(self, new: Kept) -> None:
        """Keep a prompt in place of its shorter self, and drop the oldest ones beyond the ceiling."""
        for at in range(len(self._kept) - 1, -1, -1):
            if self._kept[at].req == new.req:
                self._kept_bytes -= len(self._kept[at].tokens)
                del self._kept[at]
                break
        self._kept.append(new)
        self._kept_bytes += len(new.tokens)
        most = limits.PROMPT_BYTES_KEPT_MAX
        while self._kept_bytes > most or len(self._kept) > limits.PROMPTS_KEPT_MAX:
            self._kept_bytes -= len(self._kept.popleft().tokens)

    def _row(self, found: Divergence) -> Frame:
        earlier, new, at = found.earlier, found.new, found.at
        shown = 0 if found.what == "salt" else limits.DIVERGENCE_TOKENS_SHOWN
        if self._markers is None:
            self._markers = frozenset(self._tokenizer.find())
        return {
            "req": new.req,
            "what": found.what,
            "at": at,
            "tokens": new.prompt,
            "earlier": earlier.req,
            "answer": int(at >= earlier.prompt),
            "gone": found.gone,
            "come": found.come,
            "same": found.same,
            "moved": int(found.is_moved),
            "head": _part(new.tokens, *_head(new.tokens, at, self._markers)),
            "before": _part(new.tokens, max(0, at - shown), at),
            "was": _part(earlier.tokens, at, at + shown),
            "now": _part(new.tokens, at, at + shown),
        }


def _kept(request: Any, *, is_ended: bool) -> Kept | None:
    prompt = request.prompt_token_ids
    if prompt is None:
        return None
    try:
        ids = array("I", prompt)
        if is_ended:
            ids.extend(request.output_token_ids)
    except OverflowError:  # a token not yet known is negative
        return None
    pictures = tuple((int(one.mm_position.offset), one.identifier) for one in request.mm_features)
    req, tenant = request_text(request.request_id), tenant_of(request)
    return Kept(req, ids.tobytes(), len(prompt), tenant, pictures)


def equal_tokens(one: bytes, other: bytes) -> int:
    """Count the tokens with which both begin."""
    most = min(len(one), len(other))
    low, step = 0, 64 * _ID
    while True:
        high = min(most, low + step)
        if one[low:high] != other[low:high]:
            break
        low, step = high, 2 * step
        if low == most:
            return most // _ID
    # The first difference lies in [low, high).
    while high - low > _ID:
        middle = low + (high - low) // (2 * _ID) * _ID
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low // _ID


def diverge(earlier: Kept, new: Kept, equal: int) -> Divergence | None:
    """Give where `new` stops matching `earlier`, `equal` tokens being the same.

    None where it repeats or continues it, so that all of one of them matches.
    """
    picture = _first_other(earlier, new, equal)
    if picture is not None:
        return Divergence(earlier, new, "picture", picture, same=equal - picture)
    if equal >= min(earlier.count, new.count):
        return None
    old, now = earlier.tokens[equal * _ID :], new.tokens[equal * _ID :]
    here, there = _search(old, now), _search(now, old)
    if here is None or there is None:
        return Divergence(earlier, new, "tokens", equal)
    is_moved = here[0] == 0 and there[0] == 0
    gone, come = here
    gone, come = _back(old, now, gone, come)
    same = equal_tokens(old[gone * _ID :], now[come * _ID :])
    return Divergence(earlier, new, "tokens", equal, gone, come, same, is_moved)


def _first_other(earlier: Kept, new: Kept, equal: int) -> int | None:
    """Give the first token of a picture in the equal part that differs; None without any."""
    ours = {(at, digest) for at, digest in new.pictures if at < equal}
    theirs = {(at, digest) for at, digest in earlier.pictures if at < equal}
    return min((at for at, _ in ours ^ theirs), default=None)


def _search(old: bytes, now: bytes) -> tuple[int, int] | None:
    """Find a piece of `old` in `now`: tokens before it in each; None where none is near."""
    size = limits.DIVERGENCE_NEEDLE_TOKENS * _ID
    hay = now[: limits.DIVERGENCE_SEARCHED_MAX * _ID]
    for at in _NEEDLES:
        needle = old[at * _ID : at * _ID + size]
        if len(needle) < size:
            return None
        found = hay.find(needle)
        while found > 0 and found % _ID:
            found = hay.find(needle, found + 1)
        if found >= 0:
            return at, found // _ID
    return None


def _back(old: bytes, now: bytes, gone: int, come: int) -> tuple[int, int]:
    """Move the end of the difference to before all equal tokens."""
    while gone and come and _token(old, gone - 1) == _token(now, come - 1):
        gone, come = gone - 1, come - 1
    return gone, come


def _token(tokens: bytes, at: int) -> bytes:
    return tokens[at * _ID : (at + 1) * _ID]


def _part(tokens: bytes, first: int, end: int) -> bytes:
    return tokens[first * _ID : end * _ID]


def _head(tokens: bytes, at: int, markers: Collection[int]) -> tuple[int, int]:
    """Give the tokens, as [first, end), from the last two markers before `at`: they name the message's role."""
    ids = memoryview(tokens[: at * _ID]).cast("I")
    found: list[int] = []
    for place in range(at - 1, -1, -1):
        if ids[place] in markers:
            found.append(place)
            if len(found) == limits.DIVERGENCE_MARKERS:
                break
    first = found[-1] if found else at
    return first, min(at, first + limits.DIVERGENCE_HEAD_TOKENS)
