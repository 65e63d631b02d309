"""Owns the tests' other system: takes from Python what Linux alone has, before the shim is imported."""

import fcntl
import os
import socket
import time
from pathlib import Path

#: Set to anything, tests run as on a system that has none of it.
VARIABLE = "TIERKV_TEST_OTHER_SYSTEM"


def become() -> None:
    """Let modules of the shim find what macOS has."""
    for module, beginnings in (
        (os, ("eventfd", "EFD_", "sched_", "memfd", "MFD_")),
        (socket, ("MSG_CMSG_CLOEXEC", "SO_PEERCRED")),
        (fcntl, ("F_GET_SEALS", "F_ADD_SEALS", "F_SEAL_")),
        (time, ("CLOCK_BOOTTIME",)),
    ):
        for name in [name for name in vars(module) if name.startswith(beginnings)]:
            delattr(module, name)
    from tierkv.connectors.vllm.link import systems  # noqa: PLC0415 - it looks at what is there

    nowhere = Path("/nonexistent")
    vars(systems).update(_OWN_FOLDERS=nowhere, _STAT=nowhere)
