"""Owns the texts that published models are judged on: where each comes from, and its digest.

Prose, documentation, code and chat, from files that come with Python, Debian, this repository and one data wheel.
A digest belongs to the text before it is cut into tokens; results name all of them.
"""

from __future__ import annotations

import hashlib
import pydoc_data.topics
import sysconfig
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
LICENCES = Path("/usr/share/common-licenses")
#: The wheel of dialogues, found in the folder that `--chats` names: `pip download --no-deps` of this version.
CHATS = "chatterbot_corpus-1.3.3-py2.py3-none-any.whl"
#: Characters that hold 2,112 tokens of any of these models.
PIECE = 12_000

Turns = list[str]


@dataclass(frozen=True)
class Text:
    """A text with its origin; `turns` alternate between a user and an assistant, beginning with the user."""

    kind: str
    name: str
    turns: Turns

    @property
    def digest(self) -> str:
        return hashlib.sha256("\0".join(self.turns).encode()).hexdigest()[:16]

    def tokens(self, tokenizer: PreTrainedTokenizerBase, count: int) -> list[int]:
        """Return the first `count` tokens, as the model would get them."""
        ids = tokenizer(self.turns[0] if self.kind != "chat" else self._chat(tokenizer)).input_ids
        if len(ids) < count:
            raise ValueError(
                f"text {self.name} has {len(ids)} tokens, not {count}; take a longer text"
            )
        return list(ids[:count])

    def _chat(self, tokenizer: PreTrainedTokenizerBase) -> str:
        names = ("user", "assistant")
        said = [{"role": names[at % 2], "content": turn} for at, turn in enumerate(self.turns)]
        if tokenizer.chat_template is not None:
            return str(tokenizer.apply_chat_template(said, tokenize=False))
        ours = {"user": "user", "assistant": "model"}
        return "".join(
            f"<start_of_turn>{ours[turn['role']]}\n{turn['content']}<end_of_turn>\n"
            for turn in said
        )


def piece(kind: str, path: Path, start: int = 0) -> Text:
    text = path.read_text(encoding="utf-8")[start : start + PIECE]
    return Text(kind, f"{path.name}[{start}:]", [text])


def topic(name: str, start: int = 0) -> Text:
    text = pydoc_data.topics.topics[name][start : start + PIECE]
    return Text("documentation", f"pydoc:{name}[{start}:]", [text])


def chat(wheel: Path, names: Sequence[str], start: int = 0) -> Text:
    """Join the dialogues of some files; each distinct dialogue once, from number `start`."""
    found: dict[tuple[str, ...], None] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            data = yaml.safe_load(archive.read(f"chatterbot_corpus/data/english/{name}.yml"))
            found |= {tuple(str(turn) for turn in said): None for said in data["conversations"]}
    turns: Turns = []
    for said in list(found)[start:]:
        turns += said[: len(said) // 2 * 2]
        if sum(map(len, turns)) > PIECE:
            break
    return Text("chat", f"chats:{'+'.join(names)}[{start}:]", turns)


def lesson(start: int = 0) -> Text:
    """Join questions about Python's topics with the beginning of the answer that Python's own help gives."""
    topics = list(pydoc_data.topics.topics.items())[start:]
    turns: Turns = []
    for name, answer in topics:
        turns += [f"What does Python's help say about {name}?", answer[:600].strip()]
        if sum(map(len, turns)) > PIECE:
            break
    return Text("chat", f"chats:help[{start}:]", turns)


def written() -> list[list[Text]]:
    """Return the texts that nobody says in a chat: eight of each kind."""
    prose: list[tuple[Path, int]] = [
        (ROOT / "src/extras/demo/data/alice.txt", 0),
        (LICENCES / "GPL-3", 0),
        (LICENCES / "GPL-3", 16_000),
        (LICENCES / "MPL-2.0", 0),
        (LICENCES / "GFDL-1.3", 0),
        (LICENCES / "LGPL-2.1", 0),
        (LICENCES / "Apache-2.0", 0),
        (LICENCES / "GPL-1", 0),
    ]
    documented: list[tuple[str, int]] = [
        ("specialnames", 0),
        ("specialnames", 30_000),
        ("compound", 0),
        ("compound", 20_000),
        ("types", 0),
        ("formatstrings", 0),
        ("string-methods", 0),
        ("debugger", 0),
    ]
    modules = [
        "argparse.py",
        "asyncio/base_events.py",
        "_pydecimal.py",
        "http/client.py",
        "statistics.py",
        "tarfile.py",
        "typing.py",
        "zipfile.py",
    ]
    return [
        [piece("prose", path, start) for path, start in prose],
        [topic(name, start) for name, start in documented],
        [piece("code", LIBRARY / name, 2_000) for name in modules],
    ]


def texts(wheels: Path) -> list[Text]:
    """Return all texts, a kind after the other; `wheels` is the folder with the wheel of dialogues."""
    wheel = wheels / CHATS
    if not wheel.exists():
        raise FileNotFoundError(
            f"--chats {wheels} has no {CHATS}; run: pip download --no-deps chatterbot-corpus==1.3.3"
        )
    chats: list[Callable[[], Text]] = [
        lambda: chat(wheel, ["coding"]),
        lambda: chat(wheel, ["coding"], 12),
        lambda: chat(wheel, ["trivia"]),
        lambda: chat(wheel, ["emotion", "psychology"]),
        lambda: chat(wheel, ["ai", "computers", "literature"]),
        lambda: chat(wheel, ["humor", "science", "money", "conversations", "sports"]),
        lesson,
        lambda: lesson(40),
    ]
    columns = [*written(), [make() for make in chats]]
    return [text for row in zip(*columns, strict=True) for text in row]
