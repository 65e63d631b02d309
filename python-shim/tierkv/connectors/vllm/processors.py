"""Owns where helper threads run: off the processors that an engine computes on, where others are left to them."""

import os


def leave_bound_ones() -> None:
    """Moves the calling thread off the processors its process is bound to, to the others that its parent may use.

    vLLM's CPU worker is bound to those it computes on and leaves one to a connector (utils/ompmultiprocessing.py);
    threads inherit that, and one that wakes for every frame would push a computing one aside. Nothing happens where
    nobody is bound.
    """
    try:
        others = os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0)
        if others:
            os.sched_setaffinity(0, others)
    except OSError:
        return  # the parent has gone, or is not ours to look at
