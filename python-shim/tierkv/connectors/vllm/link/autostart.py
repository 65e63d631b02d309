"""Starts `tierkv sidecar` when nothing answers on its socket: once, detached, and the engine never waits for it."""

import fcntl
import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tierkv import program
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.settings import Settings

log = logging.getLogger("tierkv.shim")

_DETACH: Final = Path(__file__).with_name("detach.py")
#: Settings of the engine's threads and allocator, which are not the sidecar's.
_ENGINE_ONLY: Final = ("OMP_", "KMP_", "GOMP_", "LD_PRELOAD", "MALLOC_")


class Autostart:
    """Belongs to the scheduler side; `attempt` is called by the channel's helper thread when no sidecar listens.

    Several engines of a host agree by a lock file beside the socket: one starts, the others find it running.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next_attempt_s = 0.0
        self._was_served = False
        self._absent_since_s: float | None = None
        self._said = ""

    def served(self) -> None:
        """Note that a sidecar answers; once it goes, its supervisor gets `AUTOSTART_GRACE_S` to restart it."""
        self._was_served = True
        self._absent_since_s = None

    def attempt(self) -> None:
        """Start a sidecar unless one was just started; at most once per `AUTOSTART_EVERY_S`. Never raises."""
        if not self._settings.autostart:
            return
        now = time.monotonic()
        if self._was_served and self._absent_since_s is None:
            self._absent_since_s = now
        if now - (self._absent_since_s or -limits.AUTOSTART_GRACE_S) < limits.AUTOSTART_GRACE_S:
            return
        if now < self._next_attempt_s:
            return
        self._next_attempt_s = now + limits.AUTOSTART_EVERY_S
        command = sidecar_command()
        if command is None:
            self._say(
                logging.WARNING, "no `tierkv` command to start one: install it, or start it by hand"
            )
            return
        try:
            if self._start_under_lock(command):
                self._say(logging.INFO, f"starting one; its log is {self._settings.socket}.log")
        except (OSError, subprocess.SubprocessError) as error:
            self._say(logging.WARNING, f"cannot start one: {error}")

    def _say(self, level: int, text: str) -> None:
        """Log a text once, not once per attempt."""
        if text != self._said:
            self._said = text
            log.log(level, "tierKV: no sidecar at %s: %s", self._settings.socket, text)

    def _start_under_lock(self, command: list[str]) -> bool:
        """Tell whether this call started a sidecar. Raises OSError when the folder is unfit for a socket."""
        _prepare(Path(self._settings.socket).parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(f"{self._settings.socket}.autostart", flags, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # The monotonic clock counts from the machine's boot, so all engines share it.
            now = time.monotonic()
            if 0 <= now - _last_start_s(lock) < limits.AUTOSTART_EVERY_S:
                return False
            os.pwrite(lock, f"{now:020.3f}".encode(), 0)
            self._launch(command)
            return True
        finally:
            os.close(lock)

    def _launch(self, command: list[str]) -> None:
        settings = self._settings
        arguments = ["sidecar", "--exit-when-idle", "--socket", settings.socket]
        if settings.config_path is not None:
            arguments += ["--config", settings.config_path]
        output = _open_log(f"{settings.socket}.log")
        try:
            launcher = subprocess.Popen(  # noqa: S603 - our own command, no shell
                [sys.executable, "-I", "-S", str(_DETACH), *command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={k: v for k, v in os.environ.items() if not k.startswith(_ENGINE_ONLY)},
            )
        finally:
            os.close(output)
        try:
            launcher.wait(timeout=limits.AUTOSTART_LAUNCH_S)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
            raise


def sidecar_command() -> list[str] | None:
    """Find the program of this package, whose release fits, else one on PATH."""
    try:
        return program.command()
    except program.ProgramMissingError:
        return None


def _prepare(directory: Path) -> None:
    """Make the socket's directory; raises PermissionError when others could put something into it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} must be a directory of this user with mode 700")


def _open_log(path: str) -> int:
    """Open a log for appending, mode 0600; a log above the limit is truncated."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    output = os.open(path, flags, 0o600)
    if os.fstat(output).st_size > limits.AUTOSTART_LOG_BYTES_MAX:
        os.ftruncate(output, 0)
    return output


def _last_start_s(lock: int) -> float:
    """Read the time of the last start here; a time long past if there was none."""
    try:
        return float(os.pread(lock, 64, 0).decode())
    except ValueError:
        return -limits.AUTOSTART_EVERY_S
