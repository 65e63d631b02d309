#!/usr/bin/env bash
# Mistral's own tokenizers move the system prompt and the tools to the last user message (mistral-common 1.13.1, sentencepiece 0.2.3).
#
# Guess before the run: the prompt of a chat's second turn begins with all of the first turn's prompt, with every version of the
# tokenizer, so that a prefix cache computes the first turn once.
# Seen, with a system prompt of some 160 tokens, and with three tools beside it:
# - v1, v7: the second turn begins with the whole first turn.
# - v2, v3, v3 as tekken: the system prompt stands before the last user message. Two tokens of 170 are the same, one with tools:
#   each turn computes the conversation anew, and no prefix cache, in the engine or behind it, helps.
# - v7 with tools: the tools stand before the last user message. The system prompt is the same, and nothing behind it (164 of 461).
# vLLM renders with these tokenizers under `--tokenizer-mode mistral`. Versions after v7 have no tokenizer file in the package and
# were not run.
#
# Needs Python 3.11 or newer, and the network for pip. Exits with 1 if a number of equal tokens differs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install mistral-common==1.13.1 sentencepiece==0.2.3
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from itertools import takewhile

from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, Tool
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer as Mistral

FIRST = [SystemMessage(content="You answer briefly. " * 40), UserMessage(content="Name a river.")]
SECOND = [*FIRST, AssistantMessage(content="The Rhine."), UserMessage(content="Name another river.")]
TAKES = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS = [
    Tool(function=Function(name=f"tool{n}", description="Looks up a river. " * 10, parameters=TAKES))
    for n in range(3)
]

tokenizers = {
    "v1": Mistral.v1(),
    "v2": Mistral.v2(),
    "v3": Mistral.v3(),
    "v3 tekken": Mistral.v3(is_tekken=True),
    "v7": Mistral.v7(),
}
seen = {}
for name, tokenizer in tokenizers.items():
    for tools in (None, TOOLS) if name != "v1" else (None,):
        first, second = (
            tokenizer.encode_chat_completion(ChatCompletionRequest(messages=turns, tools=tools)).tokens
            for turns in (FIRST, SECOND)
        )
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second)))
        case = f"{name}, {'tools' if tools else 'no tools'}"
        seen[case] = (same, len(first))
        print(f"{case}: {same} of the first turn's {len(first)} tokens begin the second turn")

expected = {
    "v1, no tools": (175, 175),
    "v2, no tools": (2, 170),
    "v2, tools": (1, 461),
    "v3, no tools": (2, 170),
    "v3, tools": (1, 461),
    "v3 tekken, no tools": (2, 169),
    "v3 tekken, tools": (1, 457),
    "v7, no tools": (170, 170),
    "v7, tools": (164, 461),
}
sys.exit(0 if seen == expected else "mistral-common answers otherwise than when this was written")
PYTHON
