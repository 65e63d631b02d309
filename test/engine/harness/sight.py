"""A seeded vision model: a small Llama behind a small CLIP (LLaVA 1.5's way), with its processor; no download."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from lab.checkpoint import Spec, config, tensor_shapes
from lab.tokenizer import write_tokenizer
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = Spec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, vocab=512, dtype="float32")
#: Stands for a picture in a prompt, once; vLLM expands it to PICTURE_TOKENS.
PICTURE = TEXT.vocab - 1
SIDE, PATCH = 56, 14
PICTURE_TOKENS = (SIDE // PATCH) ** 2
HIDDEN, LAYERS = 64, 2
SPREAD = 0.2


def write_sighted(folder: Path) -> str:
    """Writes config, weights, tokenizer and picture processor; returns the folder."""
    folder.mkdir()
    chance = np.random.default_rng(9)
    weights = {
        name: (
            np.full(shape, name.endswith("weight"), np.float32)
            if len(shape) == 1
            else chance.normal(0, SPREAD, shape).astype(np.float32)
        )
        for name, shape in _shapes()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_tokenizer(folder)
    size = {"height": SIDE, "width": SIDE}
    parts = {
        "config": _config(),
        "preprocessor_config": {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "size": {"shortest_edge": SIDE},
            "crop_size": size,
        },
        "processor_config": {
            "processor_class": "LlavaProcessor",
            "patch_size": PATCH,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "image_token": "<image>",
        },
    }
    for name, part in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(part))
    return str(folder)


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "dtype": TEXT.dtype,
        "image_token_index": PICTURE,
        "image_seq_length": PICTURE_TOKENS,
        "text_config": config(TEXT),
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_attention_heads": 2,
            "num_hidden_layers": LAYERS,
            "image_size": SIDE,
            "patch_size": PATCH,
            "projection_dim": HIDDEN,
        },
    }


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in tensor_shapes(TEXT):
        yield f"language_model.{name}", shape
    for name, wide in (("linear_1", HIDDEN), ("linear_2", TEXT.hidden)):
        yield f"multi_modal_projector.{name}.weight", (TEXT.hidden, wide)
        yield f"multi_modal_projector.{name}.bias", (TEXT.hidden,)
    tower = "vision_tower.vision_model"
    yield f"{tower}.embeddings.class_embedding", (HIDDEN,)
    yield f"{tower}.embeddings.patch_embedding.weight", (HIDDEN, 3, PATCH, PATCH)
    yield f"{tower}.embeddings.position_embedding.weight", (PICTURE_TOKENS + 1, HIDDEN)
    yield f"{tower}.pre_layrnorm.weight", (HIDDEN,)
    yield f"{tower}.pre_layrnorm.bias", (HIDDEN,)
    sizes = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, HIDDEN)}
    sizes |= {"self_attn.v_proj": (HIDDEN, HIDDEN), "self_attn.out_proj": (HIDDEN, HIDDEN)}
    sizes |= {"mlp.fc1": (2 * HIDDEN, HIDDEN), "mlp.fc2": (HIDDEN, 2 * HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in sizes.items():
            yield f"{tower}.encoder.layers.{layer}.{name}.weight", shape
            yield f"{tower}.encoder.layers.{layer}.{name}.bias", shape[:1]
        for name in ("layer_norm1", "layer_norm2"):
            yield f"{tower}.encoder.layers.{layer}.{name}.weight", (HIDDEN,)
            yield f"{tower}.encoder.layers.{layer}.{name}.bias", (HIDDEN,)


def _write_tokenizer(folder: Path) -> None:
    """Returns the lab's byte tokenizer, whose last id marks a picture."""
    write_tokenizer(folder, vocab=TEXT.vocab, max_position=TEXT.max_position)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    del vocab[f"<{PICTURE}>"]
    vocab["<image>"] = PICTURE
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    mark = {"id": PICTURE, "content": "<image>", "special": True, **flags}
    tokenizer["added_tokens"] = [mark]
    path.write_text(json.dumps(tokenizer))
