"""Run by the Python of one vLLM release: changes every field of its configuration alone, and prints what that did."""

import contextlib
import dataclasses
import importlib
import json
import os
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", PYTHONHASHSEED="0")

import vllm.config
from lab.checkpoint import Spec, write_checkpoint
from tierkv.connectors.vllm.api.canonical import Canonical, members
from tierkv.connectors.vllm.api.exempt import CONFIG
from tierkv.connectors.vllm.api.resolved import numeric_environment, resolve
from vllm import envs
from vllm.engine.arg_utils import EngineArgs

CHANGED = "changed by a test"


def config_classes() -> dict[str, type]:
    for module in pkgutil.walk_packages(vllm.config.__path__, "vllm.config."):
        importlib.import_module(module.name)
    return {
        kind.__name__: kind
        for name, module in sorted(sys.modules.items())
        if name.startswith("vllm.config.")
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    }


@contextlib.contextmanager
def changed(owner: Any, name: str) -> Iterator[None]:
    before = getattr(owner, name)
    object.__setattr__(owner, name, CHANGED)
    try:
        yield
    finally:
        object.__setattr__(owner, name, before)


def unseen_of_blank(kind: type) -> list[str]:
    """Fields of a class that may change without changing the form of its objects."""
    blank: Any = object.__new__(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    for name in names:
        object.__setattr__(blank, name, "as it was")
    canonical = Canonical(CONFIG)
    before = canonical.text(blank, kind.__name__)
    found = []
    for name in names:
        with changed(blank, name):
            if canonical.text(blank, kind.__name__) == before:
                found.append(f"{kind.__name__}.{name}")
    return found


def real_config(folder: Path) -> Any:
    spec = Spec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, vocab=512, dtype="float32")
    write_checkpoint(folder, spec)
    options = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 512}
    return EngineArgs(model=str(folder), **options).create_engine_config()


def places_of(value: Any, place: str, seen: set[int]) -> Iterator[tuple[Any, str, str]]:
    """Every attribute below a configuration: its owner, its name, and the place tables call it by."""
    if id(value) in seen:
        return
    seen.add(id(value))
    for name, item, where in members(value, place):
        yield value, name, where
        if where not in CONFIG and (dataclasses.is_dataclass(item) or hasattr(item, "to_dict")):
            yield from places_of(item, where, seen)


def main() -> None:
    classes = config_classes()
    with tempfile.TemporaryDirectory() as folder:
        one, two = (real_config(Path(folder) / name) for name in ("one", "two"))
    one.model_config.hf_config._commit_hash = "0" * 40  # transformers before 5.18, from the hub
    ours, theirs = resolve(one), resolve(two)
    places = list(places_of(one, "VllmConfig", set()))
    fields = {
        f"{name}.{f.name}" for name, kind in classes.items() for f in dataclasses.fields(kind)
    }
    unseen = []
    reached: set[int] = set()
    for owner, name, where in places:
        if where in fields and id(owner) in reached:
            continue  # what each field does by itself, `unseen_of_blank` tells
        with changed(owner, name):
            if resolve(one) == ours:
                unseen.append(where)
            else:
                reached.add(id(owner))
    variables = [name for name in envs.environment_variables if name.startswith("VLLM_")]
    sys.stdout.write(
        json.dumps(
            {
                "parts": ours.parts,
                "refused": ours.refused or theirs.refused,
                "differ": [
                    name for name in ours.parts if ours.parts[name] != theirs.parts.get(name)
                ],
                "places": sorted(fields | {where for _, _, where in places}),
                "unseen": sorted(
                    {*unseen, *(n for k in classes.values() for n in unseen_of_blank(k))}
                ),
                "variables": variables,
                "counted": sorted(numeric_environment(dict.fromkeys(variables, ""))),
            }
        )
    )


if __name__ == "__main__":
    main()
