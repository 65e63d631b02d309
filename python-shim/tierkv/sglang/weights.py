"""Finds the files that SGLang made a model from: the model's, a draft's, and those of LoRA adapters."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tierkv.connectors.vllm.naming import digests
from tierkv.connectors.vllm.naming.files import (
    REMOTE,
    UnknownWeightsError,
    commit_of,
    hub_cache,
    texts_of,
)

#: Formats of `--load-format` whose weights are the files that `--model-path` names.
_FROM_FILES: Final = (
    "auto",
    "pt",
    "safetensors",
    "fastsafetensors",
    "npcache",
    "dummy",
    "gguf",
    "bitsandbytes",
    "layered",
    "mistral",
    "sharded_state",
)
#: Arguments with a path of one more file or folder that decides values.
_MORE: Final = (
    "quantization_param_path",
    "modelopt_checkpoint_restore_path",
    "uno_lora_path",
    "kt_weight_path",
    "speculative_token_map",
    "decrypted_config_file",
    "decrypted_draft_config_file",
)

Arguments = Mapping[str, Any]


def sources(args: Arguments, environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Give every file or folder that weights or their loading depend on, with its role.

    `args`: SGLang's resolved server arguments. Raises UnknownWeightsError for a source outside this machine.
    """
    form = str(args["load_format"])
    if form not in _FROM_FILES:
        raise UnknownWeightsError(
            f"--load-format {form} takes weights from elsewhere than the files of --model-path; set [model] identity"
        )
    yield "model", _place(str(args["model_path"]), args, args["revision"], environment)
    draft = args["speculative_draft_model_path"]
    if draft:
        revision = args["speculative_draft_model_revision"]
        yield "draft", _place(str(draft), args, revision, environment)
    for name, path in sorted(_adapters(args["lora_paths"])):
        yield f"lora {name}", _place(path, args, None, environment)
    for name in _MORE:
        if args.get(name) and os.path.exists(str(args[name])):
            yield name, Path(str(args[name]))
    for key, text in texts_of(_json(args["model_loader_extra_config"]), "extra"):
        if "://" in text:
            raise UnknownWeightsError(REMOTE.format(text))
        if os.path.exists(text):
            yield f"model.{key}", Path(text)


def _adapters(given: Any) -> Iterator[tuple[str, str]]:
    """Give name and path of each adapter of `--lora-paths`, whatever form they were resolved to."""
    items = given.items() if isinstance(given, Mapping) else ((None, one) for one in given or ())
    for name, one in items:
        found = msgspec.structs.asdict(one) if isinstance(one, msgspec.Struct) else one
        found = found if isinstance(found, Mapping) else {}
        path = one if isinstance(one, str) else found.get("lora_path") or found.get("path")
        if not path:
            raise UnknownWeightsError(f"--lora-paths: {one!r} names no files")
        yield str(found.get("lora_name") or name or path), str(path)


def _place(name: str, args: Arguments, revision: Any, environment: Mapping[str, str]) -> Path:
    """Give a model's file or folder on this machine."""
    if "://" in name:
        raise UnknownWeightsError(REMOTE.format(name))
    if os.path.exists(name):
        return Path(name)
    if environment.get("SGLANG_USE_MODELSCOPE", "0").lower() in ("1", "true"):
        raise UnknownWeightsError(f"{name} comes from ModelScope, whose cache has no digests")
    cache = Path(args["download_dir"]) if args["download_dir"] else hub_cache(environment)
    folder = cache / f"models--{name.replace('/', '--')}"
    named = folder / "refs" / str(revision or "main")
    if named.exists() and named.stat().st_ctime_ns > digests.process_born_ns():
        raise UnknownWeightsError(
            f"{named} was changed after this engine began to start, so another commit may be loaded; restart the engine"
        )
    commit = commit_of(folder, str(revision or "main"))
    snapshot = folder / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        raise UnknownWeightsError(f"no snapshot of {name} is in {cache}")
    return snapshot


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) and text else text
    except ValueError:
        return text
