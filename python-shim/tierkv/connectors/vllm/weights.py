"""Fingerprints a model's weights: cheap enough for every start, and different whenever the weights differ."""

import hashlib
from pathlib import Path
from typing import Final

from tierkv.connectors.vllm import limits

#: Files that carry weights or say how to read them. Tokenizer files do not change a block's bytes.
_PATTERNS: Final = ("*.safetensors", "*.bin", "*.pt", "*.gguf", "config.json", "*.index.json")


def fingerprint(model: str, revision: str | None, commit: str | None) -> str:
    """Give a digest of a local model's files, or the hub's name and commit.

    A local file enters with its name, its size, and samples spread over its length (`WEIGHT_SAMPLES` pieces of
    `WEIGHT_SAMPLE_BYTES`): reading terabytes at every start would be too slow, and two trained files that agree in all
    samples do not exist by accident.
    """
    directory = Path(model)
    if not directory.is_dir():
        return f"hub:{model}@{commit or revision or 'main'}"
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _PATTERNS for path in directory.glob(pattern)}):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for offset in _sample_offsets(size):
                file.seek(offset)
                digest.update(file.read(limits.WEIGHT_SAMPLE_BYTES))
    return f"files:{digest.hexdigest()}"


def _sample_offsets(size: int) -> list[int]:
    """Spread the samples from the first byte to the last; small files are read whole."""
    whole = limits.WEIGHT_SAMPLES * limits.WEIGHT_SAMPLE_BYTES
    if size <= whole:
        return list(range(0, size, limits.WEIGHT_SAMPLE_BYTES))
    last = size - limits.WEIGHT_SAMPLE_BYTES
    return [last * index // (limits.WEIGHT_SAMPLES - 1) for index in range(limits.WEIGHT_SAMPLES)]
