"""Tokenizers of three families, made from this repository's own text, with difficult texts and chats.

As a program (`python -m harness.tokens FOLDER COUNT`) it writes both, and the results of transformers.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

ROOT = Path(__file__).parents[3]
#: Split pattern of current byte-level tokenizers, before bytes are merged.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'user' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
HEADERS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- if system %}<|header|>system
{{ system }}<|eot|>
{%- endif %}
{%- for message in messages %}
<|header|>{{ message['role'] }}
{{ message['content'] | trim }}<|eot|>
{%- endfor %}
{%- if add_generation_prompt %}<|header|>assistant
{%- endif %}
"""
TAGS = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('turns must alternate') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}
{{ ' ' + message['content'] + eos_token }}{% endif %}
{% endfor %}
"""
KINDS = ("bytes", "pieces", "words")


def write_tokenizers(folder: Path) -> None:
    """Writes one folder for each of KINDS."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "bytes")
    _write_pieces(folder / "pieces")
    _write_words(folder / "words")


def write_bytes(folder: Path, vocab: int = 1000) -> None:
    """Makes byte-level BPE with a pattern and marks of turns."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(made, trainers.BpeTrainer(vocab_size=vocab - 8, initial_alphabet=alphabet))
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>")])
    _save(made, folder, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def _write_pieces(folder: Path) -> None:
    """Makes BPE over characters with spaces as `▁`, bytes for missing ones, and a start token before each text."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.ByteFallback()
    marks = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    _train(made, trainers.BpeTrainer(vocab_size=1200, special_tokens=marks), lines=400)
    made.add_special_tokens(["<s>", "</s>", "<unk>", "<|header|>", "<|eot|>"])
    made.add_tokens([AddedToken("[TOOL]", lstrip=True, rstrip=True, normalized=False)])
    first = [("<s>", made.token_to_id("<s>"))]
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=first)
    _save(made, folder, HEADERS, bos_token="<s>", eos_token="</s>")


def _write_words(folder: Path) -> None:
    """Makes WordPiece without capitals and accents, between two marks."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = ["[UNK]", "[CLS]", "[SEP]"]
    _train(made, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=marks))
    made.add_tokens([AddedToken("kv", single_word=True), AddedToken("Cache", normalized=True)])
    around = [(mark, made.token_to_id(mark)) for mark in marks[1:]]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=around
    )
    _save(made, folder, TAGS, bos_token="[CLS]", eos_token="[SEP]")


def _train(made: Tokenizer, trainer: Any, lines: int = 4000) -> None:
    text = [line for page in sorted((ROOT / "docs").glob("*.md")) for line in page.open()]
    trainer.show_progress = False
    made.train_from_iterator(text[:lines] + ["日本語 中文 한국어 ไทย naïve café\n"] * 20, trainer)


def _save(made: Tokenizer, folder: Path, template: str, **special: str) -> None:
    # Engines and the gateway ignore this limit and take prompts whole.
    made.enable_truncation(7)
    made.enable_padding(length=9, pad_token=special["eos_token"])
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**9, **special}
    settings["clean_up_tokenization_spaces"] = False
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)


_RANGES = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xD80), (0xE00, 0xE80)),
    *((0x1100, 0x1200), (0x2000, 0x2C00), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4)),
    *((0xFB00, 0xFFFE), (0x1D400, 0x1D800), (0x1F000, 0x1FB00), (0x20000, 0x2A6D0)),
)
_PIECES = (
    *("<|im_start|>", "<|im_end|>", "<|im_", "|>", "<think>", "</think>", "<s>", "</s>", "[TOOL]"),
    *(" [TOOL] ", "<|header|>", "<|eot|>", "<|endoftext|>", "kv", "KV", "Cache", "cache", "[CLS]"),
    *(
        "\r\n",
        "\n\n\n",
        "\t",
        "  ",
        " ",
        "▁",
        "'s",
        "'LL",
        "123",
        "1,234.5",
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "👍🏽",
        "e\u0301",
    ),
    *("\u0000", "\u0085", "\u00a0", "\u2028", "\u200d", "\ufeff", "\ufffd", "\U0010ffff"),
)


def texts(count: int, seed: int) -> list[str]:
    """Returns words, scripts, marks, parts of marks, runs and bytes; every tenth is long and extends the one before."""
    chance = random.Random(seed)
    words = (ROOT / "docs" / "architecture.md").read_text().split(" ")
    made = ["", " ", "\n", "\r\n", *_PIECES]
    long = ""
    while len(made) < count:
        if len(made) % 10 == 0:
            turn = "".join(_piece(chance, words) for _ in range(chance.randrange(100, 300)))
            long = turn if len(long) > 8_000 else long + turn
            made.append(long)
        else:
            made.append("".join(_piece(chance, words) for _ in range(chance.randrange(1, 25))))
    return made[:count]


def _piece(chance: random.Random, words: list[str]) -> str:
    kind = chance.randrange(10)
    if kind < 4:
        return f" {chance.choice(words)}"
    if kind < 6:
        return chance.choice(_PIECES)
    if kind < 8:
        low, high = chance.choice(_RANGES)
        return "".join(chr(chance.randrange(low, high)) for _ in range(chance.randrange(1, 5)))
    if kind == 8:
        return chance.choice([" ", "\n", "a", "-", "é", "0", "😀"]) * chance.randrange(1, 60)
    return chance.randbytes(chance.randrange(1, 9)).decode(errors="replace")


#: White space for either Python or JavaScript only, so that the gateway leaves such chats to the engine.
_ODD_SPACE = "\x1c\x1d\x1e\x1f\x85\ufeff"


def _has_odd(text: str) -> bool:
    return any(space in text for space in _ODD_SPACE)


def chats(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns bodies of chats: alternating turns, some with a system message, tools or template options."""
    chance = random.Random(seed)
    found = [text for text in texts(count * 4, seed) if len(text) < 150 and not _has_odd(text)]
    made: list[dict[str, Any]] = []
    for _ in range(count):
        roles = ["user", "assistant"] * chance.randrange(1, 5) + ["user"]
        if chance.random() < 0.4:
            roles.insert(0, "system")
        contents = [chance.choice(found) for _ in roles]
        if chance.random() < 0.1:
            contents[-1] += chance.choice(_ODD_SPACE)
        body: dict[str, Any] = {
            "messages": [
                {"role": role, "content": content}
                for role, content in zip(roles, contents, strict=True)
            ]
        }
        if chance.random() < 0.2:
            body["tools"] = [_tool(chance, found) for _ in range(chance.randrange(1, 4))]
        if chance.random() < 0.2:
            body["chat_template_kwargs"] = {"enable_thinking": chance.random() < 0.5}
        if chance.random() < 0.2:
            body["add_generation_prompt"] = False
        made.append(body)
    return made


def _tool(chance: random.Random, found: list[str]) -> dict[str, Any]:
    properties = {
        f"p{at}": {"type": "string", "description": chance.choice(found), "enum": ["é", "<&>"]}
        for at in range(chance.randrange(3))
    }
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": "f", "description": chance.choice(found), "parameters": parameters}
    return {"type": "function", "function": function}


def digest(ids: list[int]) -> str:
    """Returns ids as a short digest."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def _write_expected(folder: Path, count: int) -> None:
    """Writes `expected.json`: digests of each kind's token ids, framed and bare, and chats' results or null."""
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  # half a minute less than AutoTokenizer

    asked = texts(count, 23)
    talks = chats(max(count // 20, 50), 24)
    expected: dict[str, Any] = {"texts": asked, "chats": talks, "kinds": {}}
    for kind in KINDS:
        made = PreTrainedTokenizerFast.from_pretrained(str(folder / kind))
        rendered = []
        for body in talks:
            more = body.get("chat_template_kwargs", {})
            prompts = body.get("add_generation_prompt", True)
            given = {"tools": body.get("tools"), "add_generation_prompt": prompts, **more}
            try:
                text = made.apply_chat_template(body["messages"], tokenize=False, **given)
            except Exception as error:  # jinja's, and those of transformers
                if "must alternate" not in str(error):
                    raise
                text = None
            rendered.append(text)
        expected["kinds"][kind] = {
            "framed": [digest(made.encode(text)) for text in asked],
            "bare": [digest(made.encode(text, add_special_tokens=False)) for text in asked],
            "chats": rendered,
        }
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    write_tokenizers(Path(sys.argv[1]))
    _write_expected(Path(sys.argv[1]), int(sys.argv[2]))
