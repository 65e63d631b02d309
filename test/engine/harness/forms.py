"""Requests of every form that engines take, each with texts of its own, and what their answers say of the prompt."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.tokens import texts

if TYPE_CHECKING:
    from collections.abc import Callable

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
BATCH = "/v1/chat/completions/batch"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
INVOCATIONS = "/invocations"
#: Characters of a text, and how many different texts there are before each gets its number.
LONGEST, TEXTS = 150, 3000
#: Fewest characters of a request's first text: above GATEWAY_TOKENIZE_CHARS_MIN, below which the gateway goes by load.
FIRST = 600
#: Ids below this one are no marks of turns.
VOCABULARY = 100_000
#: A client's own template; Jinja as it is.
OWN_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

Body = dict[str, Any]


class Asked(NamedTuple):
    """One request, the name of its form, and whether its tokens can be known."""

    form: str
    path: str
    body: Body
    is_known: bool


class Used(NamedTuple):
    """An engine's count of a prompt's tokens, and of those that it had."""

    tokens: int
    cached: int


def used(path: str, answer: Body) -> Used:
    """Reads the usage of an answer of any API."""
    usage = answer["usage"]
    if path == MESSAGES:
        cached = usage.get("cache_read_input_tokens") or 0
        # Anthropic counts what was cached beside the rest.
        return Used(
            usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached
        )
    if path == RESPONSES:
        return Used(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"])
    return Used(
        usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    )


class _Words:
    """Texts that no other request has."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._pool = [text for text in texts(TEXTS, seed) if 0 < len(text) <= LONGEST]
        self._made = 0
        self._is_first = True

    def begin(self) -> None:
        """Makes the next text the first one of a request."""
        self._is_first = True

    def text(self) -> str:
        self._made += 1
        pieces = [self.chance.choice(self._pool) for _ in range(self.chance.randrange(1, 4))]
        while self._is_first and sum(map(len, pieces)) < FIRST:
            pieces.append(self.chance.choice(self._pool))
        self._is_first = False
        return f"{self._made} {self.chance.random()} " + " ".join(pieces)

    def ids(self) -> list[int]:
        return self.chance.choices(range(VOCABULARY), k=self.chance.randrange(20, 150))

    def tool(self) -> Body:
        properties = {"city": {"type": "string", "description": self.text()}}
        parameters = {"type": "object", "properties": properties, "required": ["city"]}
        return {"name": "weather", "description": self.text(), "parameters": parameters}


def _user(words: _Words) -> Body:
    return {"role": "user", "content": words.text()}


def _turns(words: _Words) -> list[Body]:
    """A system's text or none, turns of both, and a question."""
    has_system = words.chance.random() < 0.5
    made = [{"role": "system", "content": words.text()}] if has_system else []
    for _ in range(words.chance.randrange(3)):
        made += [_user(words), {"role": "assistant", "content": words.text()}]
    return [*made, _user(words)]


def _parts(words: _Words, kind: str = "text") -> list[Body]:
    return [{"type": kind, "text": words.text()} for _ in range(words.chance.randrange(1, 4))]


def _tools(words: _Words) -> list[Body]:
    return [
        {"type": "function", "function": words.tool()} for _ in range(words.chance.randrange(1, 3))
    ]


def _called(words: _Words, **content: Any) -> list[Body]:
    """A chat in which a tool was called and has answered."""
    call = {"name": "weather", "arguments": '{"city": "' + str(words.chance.random()) + '"}'}
    calls = [{"id": "call_1", "type": "function", "function": call}]
    return [
        _user(words),
        {"role": "assistant", "tool_calls": calls, **content},
        {"role": "tool", "tool_call_id": "call_1", "content": words.text()},
    ]


def _their_tools(words: _Words) -> list[Body]:
    tool = words.tool()
    return [{"name": tool["name"], "input_schema": tool["parameters"]}]


def _their_called(words: _Words) -> list[Body]:
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": words.text()}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": words.text()}
    return [
        _user(words),
        {"role": "assistant", "content": [{"type": "text", "text": words.text()}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": words.text()}]},
    ]


def _flat_called(words: _Words) -> list[Body]:
    call = {"call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'}
    return [
        _user(words),
        {"type": "function_call", **call},
        {"type": "function_call_output", "call_id": "call_1", "output": words.text()},
    ]


_Form = tuple[str, "Callable[[_Words], Body]"]
_KNOWN: dict[str, _Form] = {
    "text": (COMPLETIONS, lambda words: {"prompt": words.text()}),
    "text, bare": (
        COMPLETIONS,
        lambda words: {"prompt": words.text(), "add_special_tokens": False},
    ),
    "text in a list": (COMPLETIONS, lambda words: {"prompt": [words.text()]}),
    "ids": (COMPLETIONS, lambda words: {"prompt": words.ids()}),
    "ids in a list": (COMPLETIONS, lambda words: {"prompt": [words.ids()]}),
    "text with a salt": (
        COMPLETIONS,
        lambda words: {"prompt": words.text(), "cache_salt": f"s{words.chance.random()}"},
    ),
    "text, echoed with scores": (
        COMPLETIONS,
        lambda words: {"prompt": words.text(), "echo": True, "logprobs": 1},
    ),
    "text, echoed": (COMPLETIONS, lambda words: {"prompt": words.text(), "echo": True}),
    "text with its scores": (
        COMPLETIONS,
        lambda words: {"prompt": words.text(), "prompt_logprobs": 1},
    ),
    "text, invoked": (INVOCATIONS, lambda words: {"prompt": words.text()}),
    "chat": (CHATS, lambda words: {"messages": _turns(words)}),
    "chat of parts": (
        CHATS,
        lambda words: {
            "messages": [*_turns(words)[:-1], {"role": "user", "content": _parts(words)}]
        },
    ),
    "chat with tools": (
        CHATS,
        lambda words: {"messages": _turns(words), "tools": _tools(words), "tool_choice": "auto"},
    ),
    "chat with tools turned off": (
        CHATS,
        lambda words: {"messages": _turns(words), "tools": _tools(words), "tool_choice": "none"},
    ),
    "chat after a call": (
        CHATS,
        lambda words: {"messages": _called(words), "tools": _tools(words)},
    ),
    "chat after a call, null": (
        CHATS,
        lambda words: {"messages": _called(words, content=None), "tools": _tools(words)},
    ),
    "chat after a call with a text": (
        CHATS,
        lambda words: {"messages": _called(words, content=words.text()), "tools": _tools(words)},
    ),
    "chat with names": (
        CHATS,
        lambda words: {"messages": [{**one, "name": "bob"} for one in _turns(words)]},
    ),
    "chat with effort": (
        CHATS,
        lambda words: {"messages": _turns(words), "reasoning_effort": "low"},
    ),
    "chat with documents": (
        CHATS,
        lambda words: {
            "messages": _turns(words),
            "documents": [{"title": words.text(), "text": words.text()}],
        },
    ),
    "chat with a template's words": (
        CHATS,
        lambda words: {
            "messages": _turns(words),
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "chat with its own template": (
        CHATS,
        lambda words: {"messages": _turns(words), "chat_template": OWN_TEMPLATE},
    ),
    "chat without the last mark": (
        CHATS,
        lambda words: {"messages": _turns(words), "add_generation_prompt": False},
    ),
    "chat that is continued": (
        CHATS,
        lambda words: {
            "messages": [*_turns(words), {"role": "assistant", "content": "It is"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    "chat with its scores": (
        CHATS,
        lambda words: {"messages": _turns(words), "prompt_logprobs": 0},
    ),
    "chat of forwarded ids": (
        CHATS,
        lambda words: {
            "messages": _turns(words),
            "kv_transfer_params": {"prompt_token_ids": words.ids()},
        },
    ),
    "chat, echoed": (CHATS, lambda words: {"messages": _turns(words), "echo": True}),
    "chat with a salt": (
        CHATS,
        lambda words: {"messages": _turns(words), "cache_salt": f"s{words.chance.random()}"},
    ),
    "chat, invoked": (INVOCATIONS, lambda words: {"messages": _turns(words)}),
    "message": (MESSAGES, lambda words: {"messages": [_user(words)]}),
    "message with a system's text": (
        MESSAGES,
        lambda words: {"messages": [_user(words)], "system": words.text()},
    ),
    "message of parts": (
        MESSAGES,
        lambda words: {
            "messages": [{"role": "user", "content": _parts(words)}],
            "system": _parts(words),
        },
    ),
    "message with tools": (
        MESSAGES,
        lambda words: {"messages": [_user(words)], "tools": _their_tools(words)},
    ),
    "message after a call": (
        MESSAGES,
        lambda words: {"messages": _their_called(words), "tools": _their_tools(words)},
    ),
    "response of a text": (RESPONSES, lambda words: {"input": words.text()}),
    "response of turns": (
        RESPONSES,
        lambda words: {"input": _turns(words), "instructions": words.text()},
    ),
    "response of parts": (
        RESPONSES,
        lambda words: {"input": [{"role": "user", "content": _parts(words, "input_text")}]},
    ),
    "response with tools": (
        RESPONSES,
        lambda words: {"input": words.text(), "tools": [{"type": "function", **words.tool()}]},
    ),
    "response after a call": (RESPONSES, lambda words: {"input": _flat_called(words)}),
    "response with effort": (
        RESPONSES,
        lambda words: {"input": words.text(), "reasoning": {"effort": "low"}},
    ),
}
#: Several prompts at once, and prompts of which the engine takes a part.
_UNKNOWN: dict[str, _Form] = {
    "texts": (COMPLETIONS, lambda words: {"prompt": [words.text(), words.text()]}),
    "lists of ids": (COMPLETIONS, lambda words: {"prompt": [words.ids(), words.ids()]}),
    "text that is cut": (
        COMPLETIONS,
        lambda words: {"prompt": words.text(), "truncate_prompt_tokens": 16},
    ),
    "chats at once": (BATCH, lambda words: {"messages": [_turns(words), _turns(words)]}),
}
_LIMITS = {RESPONSES: "max_output_tokens"}


def requests(count: int, seed: int, model: str) -> list[Asked]:
    """Returns requests for one token of an answer, each form as often as every other."""
    words = _Words(seed)
    forms = [(name, form, True) for name, form in _KNOWN.items()]
    forms += [(name, form, False) for name, form in _UNKNOWN.items()]
    made = []
    for at in range(count):
        name, (path, make), is_known = forms[at % len(forms)]
        words.begin()
        body = {"model": model, _LIMITS.get(path, "max_tokens"): 1, **make(words)}
        made.append(Asked(name, path, body, is_known))
    return made
