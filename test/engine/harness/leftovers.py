"""Checks the holdings of an engine and its sidecar after all requests: everything must have an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .processes import wait_until

if TYPE_CHECKING:
    from .engine import Engine
    from .processes import Cluster


def check_nothing_left(engine: Engine, cluster: Cluster) -> dict[str, Any]:
    """Raises AssertionError where a request, load, save, block or slot is left; returns the engine's status.

    Every slot is free, granted to the worker for saves, or retained as an evictable copy. A credit for a
    save that has just ended may still be on its way, so the two ends get time to agree.
    """
    slots: dict[str, int] = {}
    status: dict[str, Any] = {}

    def is_settled() -> bool:
        status.update(engine.call("status"))
        (found,) = cluster.wait_idle()["engines"]
        arena = found["arena"]
        assert arena["freeSlots"] + arena["leasedSlots"] == arena["touchedSlots"]
        slots.update(
            leased=arena["leasedSlots"],
            granted=status["worker"]["credits"],
            retained=found["retainedBlocks"],
        )
        return slots["leased"] == slots["granted"] + slots["retained"]

    try:
        wait_until(is_settled, "leased slots are those granted or retained", timeout_s=10.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {slots}") from None
    assert status["shim"] == {"requests": 0, "plans": 0, "loads": 0, "saves": 0}
    assert (status["requests"], status["blocks_in_use"]) == (0, 0)
    return status
