"""Identifies a model by its files, read in the background, whatever engine loads them."""

import fnmatch
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.exempt import FILES
from tierkv.connectors.vllm.link.processors import lower_priority
from tierkv.connectors.vllm.naming import digests

log = logging.getLogger("tierkv.shim")

_WEIGHT_SUFFIXES: Final = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".tensors",
    ".npz",
    ".nemo",
)
#: Why weights from elsewhere have no name, with their address.
REMOTE: Final = "the weights come from {}, which this engine cannot be asked to read whole"


class UnknownWeightsError(Exception):
    """The engine's weights cannot be read here; the text has the reason."""


class ModelFiles:
    """The digest of a model's files, read in the background. `refused`: why there will be none."""

    def __init__(
        self,
        sources: Callable[[], Iterable[tuple[str, Path]]],
        folder: Path | None = None,
        born_ns: int | None = None,
        *,
        identity: str = "",
        has_weights: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sources` gives files and folders with their roles, and raises UnknownWeightsError; called in the background.

        `folder`: where digests are kept; `born_ns`: files changed later are refused. `has_weights`: weights must be
        among the files. `identity`: the operator's name for the weights, which is trusted, so that no file is read.
        """
        self.digest = f"stated:{identity}" if identity else ""
        self.refused = ""
        #: Called on the reading thread once there is a digest, or a reason why there is none.
        self.when_known: Callable[[], None] = lambda: None
        self._sources = sources
        self._has_weights = has_weights
        store = digests.DigestStore(folder or digests.state_folder())
        self._files = digests.FileDigests(store, born_ns or digests.process_born_ns())
        self._thread = threading.Thread(target=self._run, name="tierkv-naming", daemon=True)

    def begin(self) -> None:
        """Begin to read, once; returns at once."""
        if not self.digest and self._thread.ident is None:
            self._thread.start()

    def start(self) -> None:
        """Begin to read, and wait a moment, so that small models, and those with kept digests, are named at once.

        Called on the helper thread at a connection, so that the engine's start does not wait.
        """
        self.begin()
        if self._thread.is_alive():
            self._thread.join(limits.NAMING_START_WAIT_S)

    @property
    def percent(self) -> int:
        if self.digest:
            return 100
        total = self._files.total_bytes
        return min(99, self._files.done_bytes * 100 // total) if total else 0

    def close(self) -> None:
        self._files.close()

    def _run(self) -> None:
        lower_priority()
        try:
            self.digest = self._identify()
        except (UnknownWeightsError, digests.FileDigestError) as error:
            self.refused = str(error)
        except Exception as error:  # no caller waits for this thread, so it must leave an answer
            log.exception("tierKV: the model's files cannot be read")
            self.refused = f"the model's files cannot be read ({error!r})"
        self.when_known()

    def _identify(self) -> str:
        listed = {
            f"{role}/{name}": path
            for role, place in self._sources()
            for name, path in files_of(place)
        }
        if len(listed) > limits.WEIGHT_FILES_MAX:
            raise UnknownWeightsError(f"the model has more than {limits.WEIGHT_FILES_MAX} files")
        if self._has_weights() and not any(name.endswith(_WEIGHT_SUFFIXES) for name in listed):
            raise UnknownWeightsError("no weights are among the model's files on this machine")
        found = self._files.read(sorted(set(listed.values())))
        digest = hashlib.sha256()
        for name, path in sorted(listed.items()):
            digest.update(f"{name}\0{found[path]}\0".encode())
        return f"files:{digest.hexdigest()}"


def commit_of(folder: Path, revision: str) -> str:
    """Give a revision's commit on this machine; empty if unknown."""
    if (folder / "snapshots" / revision).is_dir():
        return revision
    try:
        return (folder / "refs" / revision).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Give the folder of the hub's library, by its own rule."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    home = environment.get("HF_HOME") or os.path.join(
        environment.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    return Path(home).expanduser() / "hub"


def files_of(place: Path) -> Iterator[tuple[str, Path]]:
    """Give the files of a folder, or a single file, with relative names; skips `exempt` and hidden ones."""
    if not place.is_dir():
        yield place.name, place
        return
    seen: set[str] = set()
    for here, folders, names in os.walk(place, followlinks=True):
        real = os.path.realpath(here)
        folders[:] = [] if real in seen else sorted(f for f in folders if not f.startswith("."))
        if real in seen:
            continue
        seen.add(real)
        for name in sorted(names):
            path = Path(here, name)
            if not name.startswith(".") and not _is_exempt(name) and path.is_file():
                yield str(path.relative_to(place)), path


def _is_exempt(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in FILES)


def texts_of(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Give all texts in a loader's options."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts_of(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from texts_of(item, f"{place}.{number}")
