"""Owns the digests of whole files: read in the background by few threads of low priority, kept for the next start."""

import contextlib
import hashlib
import json
import os
import queue
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tierkv.connectors.vllm import limits, processors, systems

_VERSION: Final = 1
_BLOB_DIGITS: Final = 64


class FileDigestError(Exception):
    """A file has no digest that could stand for its loaded content."""


class Stamp(NamedTuple):
    """A file's state, to detect changes; times in nanoseconds."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)


def blob_digest(path: Path) -> str | None:
    """Give the SHA-256 that a hub's cache has named a file by; None for a file that is not such a blob.

    The cache (`models--…/blobs/…`) keeps large files under the digest of their content; a snapshot links to them.
    """
    if not path.is_symlink():
        return None
    target = path.resolve()
    is_blob = target.parent.name == "blobs" and "--" in target.parent.parent.name
    is_digest = len(target.name) == _BLOB_DIGITS and not target.name.strip("0123456789abcdef")
    return target.name if is_blob and is_digest else None


class DigestStore:
    """Digests by path and stamp in a file of the state folder; only this user may write it, and it may be lost."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "weights.json"
        self._kept = self._read()

    def get(self, path: Path, stamp: Stamp) -> str | None:
        row = self._kept.get(str(path))
        return row[-1] if row is not None and row[:-1] == [*stamp] else None

    def put(self, path: Path, stamp: Stamp, digest: str) -> None:
        self._kept.pop(str(path), None)
        self._kept[str(path)] = [*stamp, digest]

    def save(self) -> None:
        """Write the digests, merged with another engine's; an unwritable state folder keeps nothing."""
        kept = {**self._read(), **self._kept}
        while len(kept) > limits.DIGESTS_KEPT_MAX:
            del kept[next(iter(kept))]
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w") as file:
                json.dump({"version": _VERSION, "files": kept}, file)
            fresh.replace(self._path)

    def _read(self) -> dict[str, list[Any]]:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return {}
        with os.fdopen(handle) as file:
            found = os.fstat(handle)
            is_ours = found.st_uid == os.getuid() and not found.st_mode & 0o022
            if (
                not stat.S_ISREG(found.st_mode)
                or not is_ours
                or found.st_size > limits.DIGESTS_BYTES_MAX
            ):
                return {}
            try:
                document = json.load(file)
                files = document["files"] if document["version"] == _VERSION else {}
                return {str(path): list(row) for path, row in files.items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                return {}


class FileDigests:
    """Digests of whole files. `read` blocks its caller, which reads as well; `done_bytes` of `total_bytes` are read.

    `born_ns`: a file changed later may differ from the loaded one, so it has no digest.
    """

    def __init__(self, store: DigestStore, born_ns: int) -> None:
        self._store = store
        self._born_ns = born_ns
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.done_bytes = 0
        self.total_bytes = 0

    def close(self) -> None:
        """End `read` soon."""
        self._closing.set()

    def read(self, paths: Sequence[Path]) -> dict[Path, str]:
        """Give the SHA-256 of every file, in hexadecimal. Raises FileDigestError naming the file."""
        found: dict[Path, str] = {}
        left: queue.SimpleQueue[tuple[Path, Stamp]] = queue.SimpleQueue()
        wanted: list[tuple[Path, Stamp]] = []
        for path in paths:
            known = blob_digest(path)
            if known is not None:
                found[path] = known
                continue
            stamp = self._stamp(path)
            kept = self._store.get(path, stamp)
            if kept is not None:
                found[path] = kept
            else:
                wanted.append((path, stamp))
        self.total_bytes = sum(stamp.size for _, stamp in wanted)
        for item in sorted(
            wanted, key=lambda item: -item[1].size
        ):  # the largest first: they take longest
            left.put(item)
        self._read_all(left, len(wanted), found)
        if wanted:
            self._store.save()
        return found

    def _read_all(
        self, left: "queue.SimpleQueue[tuple[Path, Stamp]]", count: int, found: dict[Path, str]
    ) -> None:
        failed: list[FileDigestError] = []

        def help_out() -> None:
            lower_priority()
            work()

        def work() -> None:
            while not failed and not self._closing.is_set():
                try:
                    path, stamp = left.get_nowait()
                except queue.Empty:
                    return
                try:
                    digest = self._read_one(path, stamp)
                except FileDigestError as error:
                    failed.append(error)
                    return
                with self._lock:
                    found[path] = digest

        others = [
            threading.Thread(target=help_out, name=f"tierkv-naming-{number}", daemon=True)
            for number in range(1, min(threads(), count))
        ]
        for thread in others:
            thread.start()
        work()
        for thread in others:
            thread.join()
        if failed:
            raise failed[0]
        if self._closing.is_set():
            raise FileDigestError("the engine ends")

    def _stamp(self, path: Path) -> Stamp:
        try:
            stamp = Stamp.of(path.stat())
        except OSError as error:
            raise FileDigestError(f"{path}: {error.strerror}") from error
        if stamp.ctime_ns > self._born_ns:
            raise FileDigestError(
                f"{path} was changed after this engine began to start, so it may not be what was loaded; restart the "
                "engine"
            )
        return stamp

    def _read_one(self, path: Path, stamp: Stamp) -> str:
        digest = hashlib.sha256()
        began_ns = time.time_ns()
        buffer = memoryview(bytearray(limits.NAMING_BUFFER_BYTES))
        try:
            with path.open("rb", buffering=0) as file:
                while (size := file.readinto(buffer)) and not self._closing.is_set():
                    digest.update(buffer[:size])
                    with self._lock:
                        self.done_bytes += size
                after = Stamp.of(os.fstat(file.fileno()))
        except OSError as error:
            raise FileDigestError(f"{path}: {error.strerror}") from error
        if after != stamp:
            raise FileDigestError(
                f"{path} changes while it is read; restart the engine when it is whole"
            )
        # A later change within the clock's resolution would not show, so such a file is read again next time.
        if began_ns - stamp.ctime_ns > limits.DIGEST_SETTLED_NS and not self._closing.is_set():
            with self._lock:
                self._store.put(path, stamp, digest.hexdigest())
        return digest.hexdigest()


def threads() -> int:
    """Give how many threads read: a quarter of the processors, so that an engine that starts has the rest."""
    return max(1, min(limits.NAMING_THREADS_MAX, (os.cpu_count() or 1) // 4))


def lower_priority() -> None:
    """Lower the calling thread's priority, and move it off the processors an engine is bound to."""
    processors.leave_bound_ones()
    with contextlib.suppress(OSError):
        systems.lower_thread(limits.NAMING_NICE)


def process_born_ns() -> int:
    """Give this process's start in nanoseconds since the epoch, plus a margin for clocks; loading comes later."""
    return systems.born_ns() + limits.NAMING_CLOCK_MARGIN_NS


def state_folder() -> Path:
    """Give the state folder, by the rule of `src/config`."""
    named = os.environ.get("XDG_STATE_HOME", "")
    root = Path(named) if named.startswith("/") else Path.home() / ".local" / "state"
    return root / "tierkv"
