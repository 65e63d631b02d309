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
from tierkv.connectors.vllm.settings import Settings

log = logging.getLogger("tierkv.shim")

_DETACH: Final = Path(__file__).with_name("detach.py")
#: Settings of the engine's threads and allocator, which are not the sidecar's.
_ENGINE_ONLY: Final = ("OMP_", "KMP_", "GOMP_", "LD_PRELOAD", "MALLOC_")


class Autostart:
    """Belongs to the scheduler side; `attempt` is called by the channel's helper thread when nobody listens.

    Several engines of a host agree by a lock file beside the socket: one starts, the others find it running.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next_attempt_s = 0.0
        self._was_served = False
        self._absent_since_s: float | None = None
        self._said = ""

    def served(self) -> None:
        """Hear that a sidecar answers: when it goes, whoever runs it gets `AUTOSTART_GRACE_S` to start it again."""
        self._was_served = True
        self._absent_since_s = None

    def attempt(self) -> None:
        """Start a sidecar unless somebody just did; at most once per `AUTOSTART_EVERY_S`. Never raises."""
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
        """Tell whether this call started one. Raises OSError when the place is not fit for a socket."""
        _prepare(Path(self._settings.socket).parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(f"{self._settings.socket}.autostart", flags, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # The clock is the machine's since its boot, so all engines read the same one.
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
    """Find the command: the program that came with this package, which fits it, else one on PATH."""
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
    """Open for appending, mode 0600; what has grown too long starts anew."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    output = os.open(path, flags, 0o600)
    if os.fstat(output).st_size > limits.AUTOSTART_LOG_BYTES_MAX:
        os.ftruncate(output, 0)
    return output


def _last_start_s(lock: int) -> float:
    """Read when a sidecar was last started here; long ago if never."""
    try:
        return float(os.pread(lock, 64, 0).decode())
    except ValueError:
        return -limits.AUTOSTART_EVERY_S
