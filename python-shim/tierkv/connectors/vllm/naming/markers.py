"""Finds the tokens that begin or end a message of a chat, in the engine's tokenizer, without opening it."""

import json
import os
from typing import TYPE_CHECKING, Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.naming.files import UnknownWeightsError
from tierkv.connectors.vllm.naming.weights import places

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_ADDED: Final = '"added_tokens"'


class Markers:
    """An engine's special tokens, read when they are called for."""

    def __init__(self, config: "VllmConfig") -> None:
        self._config = config

    @property
    def folder(self) -> str:
        """Give the folder of the engine's `tokenizer.json`; empty without one on this machine."""
        model = self._config.model_config
        try:
            name, download = (
                str(model.tokenizer or model.model),
                self._config.load_config.download_dir,
            )
            found = places(name, model, download, os.environ)
        except (UnknownWeightsError, OSError):
            return ""
        return next((str(place) for place in found if (place / "tokenizer.json").is_file()), "")

    def find(self) -> list[int]:
        """Give the ids of special tokens; empty where the tokenizer is not on this machine, or has another form."""
        if not (folder := self.folder):
            return []
        try:
            with open(f"{folder}/tokenizer.json", encoding="utf-8", errors="replace") as file:
                text = file.read(limits.TOKENIZER_HEAD_BYTES)
            at = text.index("[", text.index(_ADDED))
            added, _ = json.JSONDecoder().raw_decode(text, at)
            return [int(one["id"]) for one in added if one["special"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []
