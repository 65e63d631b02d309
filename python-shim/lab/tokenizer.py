"""Owns the byte-level tokenizer of a seeded checkpoint: one byte of text is one token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BYTE_SYMBOLS = 256


def write_tokenizer(directory: Path, *, vocab: int, max_position: int) -> None:
    """Saves a fast tokenizer without merges beside the model, so a server accepts plain text.

    Ids from 256 up never come from text; a random model emits them, so each has a visible mark.
    Raises ValueError when `vocab` cannot hold the 256 byte symbols.
    """
    if vocab < BYTE_SYMBOLS:
        raise ValueError(f"vocab is {vocab}; the byte symbols alone need {BYTE_SYMBOLS}")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    marks = [f"<{number}>" for number in range(BYTE_SYMBOLS, vocab)]
    ids = {symbol: number for number, symbol in enumerate(symbols + marks)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_position,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
