"""Identifies a model completely: the files it was made from, and a digest of their contents."""

import fnmatch
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.api.exempt import FILES
from tierkv.connectors.vllm.link.processors import lower_priority
from tierkv.connectors.vllm.naming import digests

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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


class UnknownWeightsError(Exception):
    """The engine's weights cannot be read here; the text has the reason."""


class Weights:
    """The digest of a model's files, read in the background. `refused`: why there will be none."""

    def __init__(
        self,
        config: "VllmConfig",
        folder: Path | None = None,
        born_ns: int | None = None,
        *,
        identity: str = "",
    ) -> None:
        """`folder`: where digests are kept; `born_ns`: files changed later are refused.

        `identity`: the operator's name for the weights, which is trusted, so that no file is read.
        """
        self.digest = f"stated:{identity}" if identity else ""
        self.refused = ""
        self._config = config
        store = digests.DigestStore(folder or digests.state_folder())
        self._files = digests.FileDigests(store, born_ns or digests.process_born_ns())
        self._thread = threading.Thread(target=self._run, name="tierkv-naming", daemon=True)

    def start(self) -> None:
        """Begin to read, and wait a moment, so that small models, and those with kept digests, are named at once.

        Called on the helper thread at the first connection, so that the engine's start does not wait.
        """
        if not self.digest and self._thread.ident is None:
            self._thread.start()
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

    def _identify(self) -> str:
        listed = {
            f"{role}/{name}": path
            for role, place in sources(self._config, os.environ)
            for name, path in files_of(place)
        }
        if len(listed) > limits.WEIGHT_FILES_MAX:
            raise UnknownWeightsError(f"the model has more than {limits.WEIGHT_FILES_MAX} files")
        reads_files = str(self._config.load_config.load_format) != "dummy"
        if reads_files and not any(name.endswith(_WEIGHT_SUFFIXES) for name in listed):
            raise UnknownWeightsError("no weights are among the model's files on this machine")
        found = self._files.read(sorted(set(listed.values())))
        digest = hashlib.sha256()
        for name, path in sorted(listed.items()):
            digest.update(f"{name}\0{found[path]}\0".encode())
        return f"files:{digest.hexdigest()}"


def sources(config: "VllmConfig", environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Give every file or folder that weights or their loading depend on, with its role.

    Raises UnknownWeightsError for a source outside this machine.
    """
    models = [("model", config.model_config, config.load_config)]
    speculative = config.speculative_config
    if speculative is not None and speculative.draft_model_config is not None:
        load = speculative.draft_load_config or config.load_config
        models.append(("draft", speculative.draft_model_config, load))
    for role, model, load in models:
        names = dict.fromkeys(filter(None, (str(model.model), str(model.model_weights or ""))))
        found = [p for name in names for p in places(name, model, load.download_dir, environment)]
        yield from ((f"{role}{number}", place) for number, place in enumerate(found))
        for key, text in _texts(load.model_loader_extra_config, "extra"):
            if "://" in text:
                raise UnknownWeightsError(_REMOTE.format(text))
            if os.path.exists(text):
                yield f"{role}.{key}", Path(text)
        scales = model.multimodal_config and model.multimodal_config.mm_encoder_fp8_scale_path
        if scales:
            yield f"{role}.scales", Path(scales)


_REMOTE: Final = "the weights come from {}, which this engine cannot be asked to read whole"


def places(
    name: str, model: Any, download: str | None, environment: Mapping[str, str]
) -> list[Path]:
    """Give a model's folders on this machine, by its path or its name in the hub.

    Raises UnknownWeightsError where there are none.
    """
    if "://" in name:
        raise UnknownWeightsError(_REMOTE.format(name))
    if os.path.exists(name):
        return [Path(name)]
    if environment.get("VLLM_USE_MODELSCOPE", "0").lower() in ("1", "true"):
        raise UnknownWeightsError(f"{name} comes from ModelScope, whose cache has no digests")
    return _snapshots(name, model, download, environment)


def _snapshots(
    name: str, model: Any, download: str | None, environment: Mapping[str, str]
) -> list[Path]:
    """Give a hub model's folders: vLLM may keep its weights (`--download-dir`) and its configuration apart."""
    caches = [Path(download)] if download else []
    caches.append(hub_cache(environment))
    found = []
    for cache in caches:
        folder = cache / f"models--{name.replace('/', '--')}"
        commit = compat.hub_commit(model.hf_config) or _commit(
            folder, str(model.revision or "main")
        )
        snapshot = folder / "snapshots" / commit
        if commit and snapshot.is_dir():
            found.append(snapshot)
    if not found:
        raise UnknownWeightsError(f"no snapshot of {name} is in {' or '.join(map(str, caches))}")
    return found


def _commit(folder: Path, revision: str) -> str:
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


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Give all texts in a loader's options."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _texts(item, f"{place}.{number}")
