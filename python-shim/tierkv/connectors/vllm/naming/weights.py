"""Finds the files that vLLM made a model from, whose digest names it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.naming.files import (
    REMOTE,
    ModelFiles,
    UnknownWeightsError,
    commit_of,
    hub_cache,
    texts_of,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig


#: By engine id, weights whose files are being read since before the engine's scheduler side exists.
_begun: dict[str, "Weights"] = {}


class Weights(ModelFiles):
    """The digest of the files of vLLM's model."""

    def __init__(
        self,
        config: "VllmConfig",
        folder: Path | None = None,
        born_ns: int | None = None,
        *,
        identity: str = "",
    ) -> None:
        """As `ModelFiles`, whose sources follow from vLLM's configuration."""
        super().__init__(
            lambda: sources(config, os.environ),
            folder,
            born_ns,
            identity=identity,
            has_weights=lambda: str(config.load_config.load_format) != "dummy",
        )


def read_ahead(config: "VllmConfig", identity: str) -> Weights:
    """Begin to read an engine's files for its scheduler side, which is made later, perhaps in another process.

    Another process finds the digests where they are kept (digests.py).
    """
    weights = Weights(config, identity=identity)
    if compat.works_beside_scheduler(config):
        _begun[str(config.kv_transfer_config.engine_id)] = weights
    weights.begin()
    return weights


def weights_of(config: "VllmConfig", identity: str) -> Weights:
    """Give the weights of an engine, whose files may be being read already."""
    begun = _begun.pop(str(config.kv_transfer_config.engine_id), None)
    return begun or Weights(config, identity=identity)


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
        for key, text in texts_of(load.model_loader_extra_config, "extra"):
            if "://" in text:
                raise UnknownWeightsError(REMOTE.format(text))
            if os.path.exists(text):
                yield f"{role}.{key}", Path(text)
        scales = model.multimodal_config and model.multimodal_config.mm_encoder_fp8_scale_path
        if scales:
            yield f"{role}.scales", Path(scales)


def places(
    name: str, model: Any, download: str | None, environment: Mapping[str, str]
) -> list[Path]:
    """Give a model's folders on this machine, by its path or its name in the hub.

    Raises UnknownWeightsError where there are none.
    """
    if "://" in name:
        raise UnknownWeightsError(REMOTE.format(name))
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
        commit = compat.hub_commit(model.hf_config) or commit_of(
            folder, str(model.revision or "main")
        )
        snapshot = folder / "snapshots" / commit
        if commit and snapshot.is_dir():
            found.append(snapshot)
    if not found:
        raise UnknownWeightsError(f"no snapshot of {name} is in {' or '.join(map(str, caches))}")
    return found
