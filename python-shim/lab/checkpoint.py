"""Owns seeded random checkpoints: small real models whose greedy tokens depend on the whole prompt.

The weights are noise, so the text is noise; what matters is that a wrong KV block changes it.
Same specification, same bytes. Written without torch, whose import alone would take longer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.families import BARE, FAMILIES
from lab.tokenizer import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

INITIALIZER_RANGE = 0.2
"""Standard deviation of the matrices: wide enough that greedy tokens vary with the prompt."""

KINDS = tuple(FAMILIES)
DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}
"""Name in a safetensors header and bytes of one element."""


@dataclass(frozen=True)
class Spec:
    """One model: everything its bytes follow from. `intermediate` 0 means about 8/3 of `hidden`."""

    kind: str = "llama"
    seed: int = 1
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 0
    vocab: int = 1024
    dtype: str = "bfloat16"
    max_position: int = 4096
    window: int = 64
    """Tokens a sliding-window layer sees; families without such layers ignore it."""
    global_every: int = 2
    """Of those families: every n-th layer sees the whole prompt."""
    state_keys: int = 0
    state_values: int = 0
    state_dim: int = 0
    """Heads and width of recurrent layers; 0: as those of attention. Families without such layers ignore them."""

    @property
    def mlp(self) -> int:
        """The MLP's width; where derived, a multiple of 128."""
        return self.intermediate or -(-(self.hidden * 8 // 3) // 128) * 128


def write_checkpoint(directory: Path, spec: Spec) -> int:
    """Writes config, weights and a one-byte-one-token tokenizer; returns the parameter count.

    Raises ValueError naming the field for a specification no model can have.
    """
    _check(spec)
    shapes = dict(tensor_shapes(spec))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(spec), indent=2) + "\n")
    write_tokenizer(directory, vocab=spec.vocab, max_position=spec.max_position)
    _write_weights(directory / "model.safetensors", spec, shapes)
    return sum(prod(shape) for shape in shapes.values())


def _write_weights(path: Path, spec: Spec, shapes: dict[str, tuple[int, ...]]) -> None:
    """Streams the tensors as safetensors: header length (uint64), JSON header, bytes."""
    import numpy as np  # noqa: PLC0415  # `--help` and a bad argument need no numpy

    name_in_file, element_bytes = DTYPES[spec.dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * element_bytes
        header[name] = {"dtype": name_in_file, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.Generator(np.random.PCG64(spec.seed))
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            file.write(_as_dtype(_weight(name, shape, generator), spec.dtype).data)


def config(spec: Spec) -> dict[str, Any]:
    """The model's `config.json`. No special tokens: ids 0..255 are bytes of text."""
    family = FAMILIES[spec.kind]
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.mlp,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_position,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "initializer_range": INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": spec.dtype,
        **family.config(spec),
    }


def tensor_shapes(spec: Spec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights, in the order in which they are drawn."""
    yield "model.embed_tokens.weight", (spec.vocab, spec.hidden)
    for layer in range(spec.layers):
        for name, shape in FAMILIES[spec.kind].layer(spec, layer):
            suffix = "" if name.rsplit(".", 1)[-1] in BARE else ".weight"
            yield f"model.layers.{layer}.{name}{suffix}", shape
    yield "model.norm.weight", (spec.hidden,)
    yield "lm_head.weight", (spec.vocab, spec.hidden)


def _check(spec: Spec) -> None:
    for name, value, allowed in (("kind", spec.kind, KINDS), ("dtype", spec.dtype, DTYPES)):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; use one of {', '.join(allowed)}")
    for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "vocab", "max_position"):
        if getattr(spec, name) < 1:
            raise ValueError(f"{name} is {getattr(spec, name)}; it must be at least 1")
    if spec.heads % spec.kv_heads != 0:
        raise ValueError(f"kv_heads is {spec.kv_heads}; it must divide heads ({spec.heads})")


def _weight(
    name: str, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[np.float32]:
    """Draws a matrix; a vector is a norm's scale (ones) or one of BARE."""
    import numpy as np  # noqa: PLC0415

    if len(shape) == 1:
        value = BARE.get(name.rsplit(".", 1)[-1], 1.0)
        return np.full(shape, value, dtype=np.float32)
    drawn = generator.standard_normal(shape, dtype=np.float32)
    drawn *= np.float32(INITIALIZER_RANGE)
    return drawn


def _as_dtype(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Casts to the checkpoint's dtype; numpy has no bfloat16, so its bits are rounded here."""
    import numpy as np  # noqa: PLC0415

    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    bits += 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    return (bits >> 16).astype(np.uint16)


def main(argv: list[str] | None = None) -> int:
    """Writes one checkpoint and prints one JSON line: path, parameters, seconds."""
    from lab.geometries import GEOMETRIES  # noqa: PLC0415  # it imports this file

    parser = argparse.ArgumentParser(
        prog="python -m lab.checkpoint",
        description="Writes a seeded random model that a real vLLM serves.",
        epilog="example: python -m lab.checkpoint --out /tmp/model --seed 1 --layers 12",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    text = "a published model's KV; other options change it"
    parser.add_argument("--geometry", choices=tuple(GEOMETRIES), help=text)
    for field in fields(Spec):
        choices = {"kind": KINDS, "dtype": tuple(DTYPES)}.get(field.name)
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=str if choices else int,
            choices=choices,
            default=argparse.SUPPRESS,
            help=f"default {field.default}",
        )
    options = vars(parser.parse_args(argv))
    directory: Path = options.pop("out")
    base = GEOMETRIES.get(options.pop("geometry"), Spec())
    started = time.monotonic()
    try:
        parameters = write_checkpoint(directory, replace(base, **options))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"checkpoint not written to {directory}: {error}\n")
        return 1
    seconds = round(time.monotonic() - started, 2)
    report = {"path": str(directory), "parameters": parameters, "seconds": seconds}
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
