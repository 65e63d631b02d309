"""Connects to the sidecar's socket and to no other user's: checks folder, socket and peer before a byte is sent."""

import os
import socket
import stat
from pathlib import Path
from typing import Final

from tierkv.connectors.vllm.link import systems

_ROOT: Final = 0
_FOREIGN_WRITE: Final = 0o022
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StrangerError(OSError):
    """Folder, socket or peer is another user's, or another user could have put it there. Nothing was sent."""


def dial(path: str, timeout_s: float) -> socket.socket:
    """Give a connected socket whose other end runs as this user, or as root.

    Raises StrangerError naming path, owner or mode, and the fix; OSError when no process listens within `timeout_s`.
    """
    place = Path(path)
    folder = _open_folder(place.parent)
    try:
        _check_socket(path, os.stat(place.name, dir_fd=folder, follow_symlinks=False))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            # Connects through the checked folder, because its path may name another one by now.
            systems.connect(sock, folder, place)
            _check_peer(path, sock)
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(folder)


def _open_folder(folder: Path) -> int:
    try:
        opened = os.open(folder, _FOLDER_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        # A link is ENOTDIR with these flags.
        if folder.is_symlink():
            raise StrangerError(f"{folder} is a link; {_fix_place(folder.resolve())}") from error
        raise
    found = os.fstat(opened)
    mode = stat.S_IMODE(found.st_mode)
    problem = ""
    if not _is_trusted(found.st_uid):
        problem = f"belongs to user {found.st_uid}, this engine runs as user {os.geteuid()}; "
        problem += _fix_place()
    elif mode & _FOREIGN_WRITE:
        problem = f"has mode {mode:o}, so others may put a socket there; run `chmod 700 {folder}`"
    if problem:
        os.close(opened)
        raise StrangerError(f"{folder} {problem}")
    return opened


def _check_socket(path: str, found: os.stat_result) -> None:
    if not stat.S_ISSOCK(found.st_mode):
        raise StrangerError(f"{path} is no socket; remove it, or {_fix_place()}")
    if not _is_trusted(found.st_uid):
        raise StrangerError(
            f"{path} belongs to user {found.st_uid}, this engine runs as user {os.geteuid()}; {_fix_place()}"
        )


def _check_peer(path: str, sock: socket.socket) -> None:
    uid = systems.peer_uid(sock)
    if uid is not None and not _is_trusted(uid):
        raise StrangerError(
            f"{path}: user {uid} listens there, this engine runs as user {os.geteuid()}; "
            "run sidecar and engine as the same user"
        )


def _is_trusted(uid: int) -> bool:
    """Tell whether a user is this one, or root, against whom no check helps."""
    return uid in (_ROOT, os.geteuid())


def _fix_place(to: Path | None = None) -> str:
    where = "a folder of this user's with mode 700" if to is None else str(to)
    return f"set [sidecar] socket to a path in {where}"
