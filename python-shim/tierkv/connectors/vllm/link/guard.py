"""Keeps tierKV's exceptions from the engine's thread: each is counted and logged once, and may turn tierKV off."""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar, cast

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.metadata import StepMetadata
from tierkv.connectors.vllm.link.counters import Counters

log = logging.getLogger("tierkv.shim")

F = TypeVar("F", bound=Callable[..., Any])


class CannotRecomputeError(RuntimeError):
    """A load failed and this vLLM cannot be told; ending the engine is better than wrong tokens."""


class Failures:
    """Owns the failures of one half of the shim; the half is off once its state cannot be trusted."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._said: set[tuple[str, type[BaseException]]] = set()
        self.is_off = False

    def note(self, where: str, error: BaseException) -> None:
        """Count an exception, and log it with its traceback the first time."""
        self._counters.add(f"errors_{where}")
        if (where, type(error)) not in self._said:
            self._said.add((where, type(error)))
            log.error("tierKV: %s failed; the engine goes on", where, exc_info=error)

    def attempt(self, where: str, call: Callable[[], object]) -> None:
        """Make a call and note its exception, if any."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it runs on the engine's thread
            self.note(where, error)

    def turn_off(self, why: str) -> bool:
        """Turn this half off for good; False if it is off already."""
        if self.is_off:
            return False
        self.is_off = True
        self._counters.add("turned_off")
        log.error(
            "tierKV: turned itself off for this engine, because %s: nothing is restored or saved until it is "
            "restarted; its answers stay right",
            why,
        )
        return True


class Half(Protocol):
    """The scheduler side or the worker side."""

    failures: Failures

    def turn_off(self, why: str) -> None:
        """Give back what can be given back; never raises."""


#: Neutral results by method; None for all others.
_NEUTRAL: Final[Mapping[str, Callable[[], Any]]] = {
    "get_num_new_matched_tokens": lambda: (0, False),
    "build_connector_meta": lambda: StepMetadata(is_off=True),
    "request_finished": lambda: (False, None),
    "has_pending_push_work": lambda: False,
    "has_pending_block_frees": lambda: False,
    "reset_cache": lambda: True,
    "get_external_cache_hit_sources": dict,
    "take_events": tuple,
    "get_finished": lambda: (None, None),
    "get_transfer_results": lambda: compat.transfer_results(set(), set()),
    "get_block_ids_with_load_errors": set,
}


def guarded(
    owed: Callable[..., Any] | None = None,
    *,
    is_vital: bool = True,
    lets_through: tuple[type[Exception], ...] = (),
) -> Callable[[F], F]:
    """Decorate an entry point of the connector, whose `half` is the one in this process.

    When a vital method raises, tierKV is off from then on, and `owed` runs instead: it gives what vLLM waits for,
    whatever the method did before. An error in any other method only gives a neutral result.
    """

    passing: tuple[type[Exception], ...] = (CannotRecomputeError, *lets_through)

    def decorate(method: F) -> F:
        name = method.__name__

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            half: Half = self.half
            failures = half.failures
            if not (is_vital and failures.is_off):
                try:
                    return method(self, *args, **kwargs)
                except passing:
                    raise
                except Exception as error:  # noqa: BLE001 - an exception ends the server
                    failures.note(name, error)
                    if is_vital:
                        half.turn_off(f"{name} failed ({type(error).__name__}: {error})")
            try:
                if owed is not None:
                    return owed(self, *args, **kwargs)
            except CannotRecomputeError:
                raise
            except Exception as error:  # noqa: BLE001 - the same
                failures.note(f"{name}_owed", error)
            return _NEUTRAL[name]() if name in _NEUTRAL else None

        return cast("F", call)

    return decorate
