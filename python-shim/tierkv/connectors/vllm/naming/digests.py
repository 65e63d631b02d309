"""Owns the digests of whole files: read in the background by few threads of low priority, kept for the next start."""

import contextlib
import fcntl
import json
import os
import queue
import stat
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from blake3 import blake3  # vLLM requires it

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link import systems
from tierkv.connectors.vllm.link.processors import lower_priority

_VERSION: Final = 2
_SHA256_DIGITS: Final = 64


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
    return target.name if is_blob and _is_sha256(target.name) else None


def local_digest(path: Path) -> str | None:
    """Give the SHA-256 that `hf download --local-dir` noted of a file; None where it noted none, or the file changed.

    Its note (`.cache/huggingface/download/NAME.metadata`: commit, ETag, time) is written when the file is whole. The
    file's change time, which no program can set back, must not be later.
    """
    for folder in path.parents[: limits.LOCAL_DEPTH_MAX]:
        notes = folder / ".cache" / "huggingface" / "download"
        note = notes / f"{path.relative_to(folder)}.metadata"
        try:
            with note.open(encoding="ascii") as file:
                _, etag, noted_s = file.read(limits.LOCAL_NOTE_BYTES_MAX).split()
            if path.is_symlink() or path.stat().st_ctime - 1 > float(noted_s):
                return None
        except (OSError, ValueError):
            if notes.is_dir():
                return None
            continue
        return etag if _is_sha256(etag) else None
    return None


def _is_sha256(text: str) -> bool:
    return len(text) == _SHA256_DIGITS and not text.strip("0123456789abcdef")


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

    @contextlib.contextmanager
    def alone(self, folder: Path, closing: threading.Event) -> Iterator[None]:
        """Wait until no other process of this user reads a model in `folder`, and know what it found.

        Waits for `NAMING_LOCK_MAX_S` at most, since the other one may be stopped. Ranks and schedulers of one machine
        start together, and would each read the same files.
        """
        number = zlib.crc32(os.fsencode(folder)) % limits.NAMING_LOCKS
        path = self._path.with_name(f"reading-{number}.lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = -1
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, flags, 0o600)
        until = time.monotonic() + limits.NAMING_LOCK_MAX_S
        try:
            while lock >= 0 and not _takes(lock):
                if closing.wait(limits.NAMING_LOCK_POLL_S) or time.monotonic() >= until:
                    break
            self._kept = {**self._read(), **self._kept}
            yield
        finally:
            if lock >= 0:
                os.close(lock)

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


def _takes(lock: int) -> bool:
    """Lock a file; False while another process has it locked. A file system without locks locks nobody out."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class _Reading:
    """One file that is read; segments may come in any order, from several threads."""

    def __init__(self, path: Path, stamp: Stamp) -> None:
        self.path = path
        self.stamp = stamp
        self.parts: dict[int, bytes] = {}

    @property
    def starts(self) -> range:
        return range(0, max(1, self.stamp.size), limits.NAMING_SEGMENT_BYTES)

    def digest(self) -> str:
        """Give the BLAKE3 of the segments' BLAKE3 digests, in order."""
        parts = b"".join(self.parts[start] for start in self.starts)
        return f"blake3:{blake3(parts).hexdigest()}"


class FileDigests:
    """Digests of whole files: those that a download noted (SHA-256), else BLAKE3 of their segments.

    `read` blocks its caller, which reads as well; `done_bytes` of `total_bytes` are read. Files are read, not mapped,
    because a mapped file that becomes shorter ends the process. `born_ns`: a file changed later may differ from the
    loaded one, so it has no digest.
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
        """Give the digest of every file. Raises FileDigestError naming the file."""
        found: dict[Path, str] = {}
        wanted: list[_Reading] = []
        for path in paths:
            known = blob_digest(path)
            if known is not None:
                found[path] = known
                continue
            stamp = self._stamp(path)
            kept = local_digest(path) or self._store.get(path, stamp)
            if kept is not None:
                found[path] = kept
            else:
                wanted.append(_Reading(path, stamp))
        if wanted:
            self.total_bytes = sum(one.stamp.size for one in wanted)
            with self._store.alone(wanted[0].path.parent, self._closing):
                found |= self._read_wanted(wanted)
        return found

    def _read_wanted(self, wanted: Sequence[_Reading]) -> dict[Path, str]:
        """Read files, but those whose digest another process has stored meanwhile."""
        kept = {one.path: self._store.get(one.path, one.stamp) for one in wanted}
        left = [one for one in wanted if kept[one.path] is None]
        self._read_all(left)
        if left:
            self._store.save()
        read = {one.path: one.digest() for one in left}
        return {path: digest or read[path] for path, digest in kept.items()}

    def _read_all(self, wanted: Sequence[_Reading]) -> None:
        left: queue.SimpleQueue[tuple[_Reading, int]] = queue.SimpleQueue()
        for one in wanted:
            for start in one.starts:
                left.put((one, start))
        count = left.qsize()
        failed: list[FileDigestError] = []

        def help_out() -> None:
            lower_priority()
            work()

        def work() -> None:
            buffer = memoryview(bytearray(limits.NAMING_BUFFER_BYTES))
            while not failed and not self._closing.is_set():
                try:
                    one, start = left.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._read_segment(one, start, buffer)
                except FileDigestError as error:
                    failed.append(error)
                    return

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

    def _read_segment(self, one: _Reading, start: int, buffer: memoryview) -> None:
        """Read a segment of a file, and note the file's digest when it was the last."""
        digest, at = blake3(), start
        end = min(start + limits.NAMING_SEGMENT_BYTES, one.stamp.size)
        began_ns = time.time_ns()
        try:
            with one.path.open("rb", buffering=0) as file:
                while at < end and not self._closing.is_set():
                    size = os.preadv(file.fileno(), [buffer[: min(len(buffer), end - at)]], at)
                    if size == 0:
                        break
                    digest.update(buffer[:size])
                    at += size
                    with self._lock:
                        self.done_bytes += size
                after = Stamp.of(os.fstat(file.fileno()))
        except OSError as error:
            raise FileDigestError(f"{one.path}: {error.strerror}") from error
        if after != one.stamp:
            raise FileDigestError(
                f"{one.path} changes while it is read; restart the engine when it is whole"
            )
        if self._closing.is_set():
            return
        with self._lock:
            one.parts[start] = digest.digest()
            # A later change within the clock's resolution would not show, so such a file is read again next time.
            is_settled = began_ns - one.stamp.ctime_ns > limits.DIGEST_SETTLED_NS
            if is_settled and len(one.parts) == len(one.starts):
                self._store.put(one.path, one.stamp, one.digest())


def threads() -> int:
    """Give how many threads read: half of the processors, at least two; they have the lowest priority."""
    processors = os.cpu_count() or 1
    return min(limits.NAMING_THREADS_MAX, processors, max(2, processors // 2))


def process_born_ns() -> int:
    """Give this process's start in nanoseconds since the epoch, plus a margin for clocks; loading comes later."""
    return systems.born_ns() + limits.NAMING_CLOCK_MARGIN_NS


def state_folder() -> Path:
    """Give the state folder, by the rule of `src/config`."""
    named = os.environ.get("XDG_STATE_HOME", "")
    root = Path(named) if named.startswith("/") else Path.home() / ".local" / "state"
    return root / "tierkv"
