"""Writes a target and an EAGLE head whose drafts are accepted sometimes, and depend on the head's own KV."""

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


def write_pair(folder: Path, spec: Spec) -> tuple[str, str]:
    """Writes both checkpoints; returns their folders."""
    target, head = folder / "target", folder / "head"
    write_checkpoint(target, spec)
    tensors = load_file(target / "model.safetensors")
    own = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = np.roll(own, _NEXT, axis=0)
    tensors["model.embed_tokens.weight"] = (_SCALE * own).astype(np.float32)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    write_checkpoint(head, spec)
    said = json.loads((head / "config.json").read_text()) | {"num_hidden_layers": 1}
    (head / "config.json").write_text(json.dumps(said))
    save_file(_head(spec), head / "model.safetensors", metadata={"format": "pt"})
    return str(target), str(head)


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
