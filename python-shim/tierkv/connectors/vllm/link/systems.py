"""Owns the system calls that differ between Linux and others, such as macOS, where mlx-lm runs."""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

#: struct ucred: pid, uid, gid.
_UCRED: Final = struct.Struct("3i")
#: macOS (sys/un.h, sys/ucred.h): SOL_LOCAL, LOCAL_PEERCRED, and struct xucred, whose user follows its version.
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
_XUCRED_BYTES: Final = 76
_XUCRED: Final = struct.Struct("II")
#: Flag that closes arriving descriptors in started programs; 0 where the system has none.
_CLOSED_FOR_CHILDREN: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_OWN_FOLDERS: Final = Path("/proc/self/fd")
_STAT: Final = Path("/proc/self/stat")
_PS_S: Final = 10.0
#: Seconds of days, hours, minutes and seconds, as POSIX's `ps -o etime` has them.
_UNITS: Final = (86_400, 3600, 60, 1)


def peer_uid(sock: socket.socket) -> int | None:
    """Give the user at the other end of a Unix socket; None where the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(told)[1])
    if sys.platform == "darwin":
        told = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return int(_XUCRED.unpack_from(told)[1])
    return None


def connect(sock: socket.socket, folder: int, path: Path) -> None:
    """Connect to a socket of an open folder, even if its path names another one by now. Raises OSError."""
    if _OWN_FOLDERS.exists():
        sock.connect(f"{_OWN_FOLDERS}/{folder}/{path.name}")
        return
    sock.connect(str(path))
    if not os.path.samestat(os.fstat(folder), path.parent.stat()):
        raise OSError(f"{path.parent} is another folder than a moment ago")


def receive(
    sock: socket.socket, most: int, room: int
) -> tuple[bytes, list[tuple[int, int, bytes]]]:
    """Read bytes and ancillary data; started programs do not inherit its descriptors."""
    data, ancillary, _, _ = sock.recvmsg(most, room, _CLOSED_FOR_CHILDREN)
    return data, ancillary


def keep_from_children(descriptor: int) -> None:
    """Close a descriptor in started programs, unless it arrived so."""
    if not _CLOSED_FOR_CHILDREN:
        os.set_inheritable(descriptor, False)


def cannot_shrink(descriptor: int) -> bool:
    """Tell whether unnamed memory keeps its size: on Linux by a seal; elsewhere no other user reaches it."""
    if not hasattr(fcntl, "F_GET_SEALS"):
        return True
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & seals == seals


def lower_thread(nice: int) -> None:
    """Lower the calling thread's priority; only on Linux, because elsewhere the whole process would change."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def processors_of(process: int) -> set[int]:
    """Give the processors that a process may use; empty where the system binds none."""
    return os.sched_getaffinity(process) if hasattr(os, "sched_getaffinity") else set()


def born_ns() -> int:
    """Give this process's start in nanoseconds since the epoch, never too late."""
    if not _STAT.exists():
        return time.time_ns() - (_elapsed_s() + 1) * 1_000_000_000
    fields = _STAT.read_text().rpartition(")")[2].split()
    after_boot_ns = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    alive_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - after_boot_ns
    return time.time_ns() - alive_ns


def _elapsed_s() -> int:
    asked = ["ps", "-o", "etime=", "-p", str(os.getpid())]
    said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=_PS_S)  # noqa: S603
    parts = [int(part) for part in said.stdout.strip().replace("-", ":").split(":")]
    return sum(part * unit for part, unit in zip(reversed(parts), reversed(_UNITS), strict=False))
