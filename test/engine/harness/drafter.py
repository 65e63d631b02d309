"""Writes targets with an EAGLE or an MTP head whose drafts are accepted sometimes, and depend on the head's own KV."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from lab.checkpoint import Spec, tensor_shapes, write_checkpoint
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

#: Scale of the embeddings: against them the layers decide some of the next tokens, not all.
_SCALE = 80.0
#: Distance of the token that a token's embedding alone predicts.
_NEXT = 7
#: Standard deviation of the head's matrices: wide enough that what it attends to decides some drafts.
_HEAD = 0.15
#: Key of a configuration in which Qwen2's successors count their MTP layers.
_MTP_LAYERS = "num_nextn_predict_layers"
#: Matrices that have a bias in Qwen2.
_WITH_BIAS = ("q_proj.weight", "k_proj.weight", "v_proj.weight")


def write_pair(folder: Path, spec: Spec) -> tuple[str, str]:
    """Writes both checkpoints; returns their folders."""
    target, head = folder / "target", folder / "head"
    write_checkpoint(target, spec)
    _save(target, _predictable(target))
    write_checkpoint(head, spec)
    said = json.loads((head / "config.json").read_text()) | {"num_hidden_layers": 1}
    (head / "config.json").write_text(json.dumps(said))
    save_file(_head(spec), head / "model.safetensors", metadata={"format": "pt"})
    return str(target), str(head)


def write_mtp(folder: Path, spec: Spec) -> str:
    """Writes one checkpoint in the form of MiMo, with one MTP layer; returns its folder."""
    write_checkpoint(folder, spec)
    form = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", _MTP_LAYERS: 1}
    said = json.loads((folder / "config.json").read_text()) | form
    (folder / "config.json").write_text(json.dumps(said))
    tensors = _predictable(folder)
    scale = float(np.sqrt(np.mean(tensors["model.embed_tokens.weight"] ** 2)))
    layer = _head(spec)
    del layer["fc.weight"]
    first = "model.mtp_layers.0."
    tensors |= {name.replace("layers.0.", first): value for name, value in layer.items()}
    for norm in ("input", "token", "hidden", "final"):
        place = f"{first}{norm}_layernorm.weight"
        tensors[place] = np.ones(spec.hidden, dtype=np.float32)
    # The norm before it took the embedding's scale away.
    own = np.concatenate([np.zeros((spec.hidden,) * 2), scale * np.eye(spec.hidden)], axis=1)
    tensors[f"{first}input_proj.weight"] = own.astype(np.float32)
    for name in [name for name in tensors if name.endswith(_WITH_BIAS)]:
        rows = np.zeros(len(tensors[name]), dtype=np.float32)
        tensors[name.replace(".weight", ".bias")] = rows
    _save(folder, tensors)
    return str(folder)


def _predictable(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Returns a checkpoint's tensors, changed so that a token's embedding often decides the next one."""
    tensors: dict[str, NDArray[np.float32]] = load_file(folder / "model.safetensors")
    own = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = np.roll(own, _NEXT, axis=0)
    tensors["model.embed_tokens.weight"] = (_SCALE * own).astype(np.float32)
    return tensors


def _save(folder: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _head(spec: Spec) -> dict[str, NDArray[np.float32]]:
    """Returns one layer without its first norm, and `fc`, which passes the token's embedding on."""
    chance = np.random.default_rng(3)
    first = "model.layers.0."
    layer = {name[6:]: shape for name, shape in tensor_shapes(spec) if name.startswith(first)}
    del layer["layers.0.input_layernorm.weight"]
    found = {
        name: np.ones(shape) if len(shape) == 1 else chance.normal(0, _HEAD, shape)
        for name, shape in layer.items()
    }
    found["fc.weight"] = np.concatenate([np.eye(spec.hidden), np.zeros((spec.hidden,) * 2)], axis=1)
    return {name: value.astype(np.float32) for name, value in found.items()}
