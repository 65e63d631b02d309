"""Owns the placement of helper threads: off the processors that an engine computes on, if others are left."""

import contextlib
import os
from typing import Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link import systems

#: Variables by which vLLM binds its CPU workers (utils/ompmultiprocessing.py), one for each OpenMP.
_BINDINGS: Final = ("OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def leave_bound_ones() -> None:
    """Moves the calling thread from the processors OpenMP is bound to, to the others that the process's parent may use.

    vLLM's CPU worker is bound to those it computes on and leaves one to a connector; threads inherit that, and one that
    wakes for every frame would push a computing one aside. A process bound otherwise (`taskset`, NUMA) stays there.
    """
    if not any(name in os.environ for name in _BINDINGS):
        return
    try:
        others = systems.processors_of(os.getppid()) - systems.processors_of(0)
        if others:
            os.sched_setaffinity(0, others)
    except OSError:
        return  # the parent has gone, or is not ours to look at


def lower_priority() -> None:
    """Lower the calling thread's priority, and move it off the processors an engine is bound to."""
    leave_bound_ones()
    with contextlib.suppress(OSError):
        systems.lower_thread(limits.NAMING_NICE)
