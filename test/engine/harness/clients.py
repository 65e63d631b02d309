"""What real clients ask of an address, and what they make of its answers: openai, anthropic, and OpenAI's agents.

Each question takes the address of an engine or a gateway, and returns what a program would see: texts, calls, counts,
or an error's class. Ids and times are left out, because they differ from one answer to the next.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from harness.engine import CALL_S

if TYPE_CHECKING:
    from collections.abc import Callable

#: Name under which the engine serves the model.
MODEL = "published"
#: Tokens of an answer.
ANSWER = 8
#: Tokens of an agent's turn, whole: its framework refuses a Responses answer that was cut.
TURN = 512
#: A prompt that the engine refuses, because it is longer than the server's `--max-model-len`.
LONG = "word " * 3000

#: Traces would be sent to OpenAI.
set_tracing_disabled(disabled=True)

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Write a Python function that adds."}]
SYSTEM = "You are a terse assistant."
PARTS = [{"type": "text", "text": "Name two colours,"}, {"type": "text", "text": " and a fruit."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Bern", "Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS: list[Any] = [{"type": "function", **FUNCTION, "strict": True}]
THEIR_TOOLS: list[Any] = [
    {"name": "weather", "description": FUNCTION["description"], "input_schema": SCHEMA}
]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
ARGUMENTS = '{"city": "Oslo"}'
#: A turn that called a tool has no `content`, as agents send it.
CALLED: list[Any] = [
    *WEATHER,
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": ARGUMENTS},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees, snow"},
]
FLAT_CALLED: list[Any] = [
    *WEATHER,
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS},
    {"type": "function_call_output", "call_id": "call_1", "output": "4 degrees, snow"},
]
THEIR_CALLED: list[Any] = [
    *WEATHER,
    {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "4 degrees, snow"}],
    },
]
_CHAT: dict[str, Any] = {"model": MODEL, "max_tokens": ANSWER, "temperature": 0}
_FLAT: dict[str, Any] = {"model": MODEL, "max_output_tokens": ANSWER, "temperature": 0}
#: The SDK has no argument for the temperature any more.
_COLD: dict[str, Any] = {"model": MODEL, "max_tokens": ANSWER, "extra_body": {"temperature": 0}}


def openai_at(url: str, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="any", **{"max_retries": 0, "timeout": CALL_S, **more}
    )


def anthropic_at(url: str, **more: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=url, api_key="any", **{"max_retries": 0, "timeout": CALL_S, **more}
    )


def _calls(message: Any) -> list[list[str]]:
    return [[one.function.name, one.function.arguments] for one in message.tool_calls or []]


def _chat(url: str, **asked: Any) -> Any:
    answer = openai_at(url).chat.completions.create(**{**_CHAT, "messages": ASK, **asked})
    choices = [
        [one.message.content, _calls(one.message), one.finish_reason] for one in answer.choices
    ]
    assert answer.usage is not None
    return choices, answer.usage.prompt_tokens, answer.usage.completion_tokens


def _chat_streamed(url: str, **asked: Any) -> Any:
    """Returns what the SDK's own collector makes of the pieces, and the usage at the end."""
    text, ends, usage = "", [], None
    calls: dict[int, list[str]] = {}
    stream = openai_at(url).chat.completions.create(
        **{**_CHAT, "messages": ASK, **asked},
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(piece.index, ["", ""])
                if piece.function is not None:
                    call[0] += piece.function.name or ""
                    call[1] += piece.function.arguments or ""
            if choice.finish_reason is not None:
                ends.append(choice.finish_reason)
    assert usage is not None
    return text, calls, ends, usage.prompt_tokens, usage.completion_tokens


def _chat_scored(url: str) -> Any:
    asked = {**_CHAT, "messages": ASK, "logprobs": True, "top_logprobs": 2}
    answer = openai_at(url).chat.completions.create(**asked)
    return [
        [[each.token for each in step.top_logprobs] for step in one.logprobs.content or []]
        for one in answer.choices
        if one.logprobs is not None
    ]


def _chat_parsed(url: str) -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    return _chat(url, response_format=form)


def _chats_at_once(url: str) -> Any:
    """Several requests share one client, as in a program that serves users."""

    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=CALL_S
        ) as client:
            asked = [
                client.chat.completions.create(
                    **_CHAT, messages=[{"role": "user", "content": f"Count to {number}."}]
                )
                for number in range(3, 6)
            ]
            return [one.choices[0].message.content for one in await asyncio.gather(*asked)]

    return asyncio.run(ask())


def _completion(url: str, prompt: Any, **asked: Any) -> Any:
    answer = openai_at(url).completions.create(**{**_CHAT, "prompt": prompt, **asked})
    return [[one.index, one.text, one.finish_reason] for one in answer.choices], answer.usage


def _completion_streamed(url: str) -> Any:
    stream = openai_at(url).completions.create(**_CHAT, prompt="def add(", stream=True)
    return [[one.text, one.finish_reason] for chunk in stream for one in chunk.choices]


def _echoed(url: str) -> Any:
    answer = openai_at(url).completions.create(
        **{**_CHAT, "max_tokens": 2}, prompt="def add(left, right):", echo=True, logprobs=1
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    return choice.text, choice.logprobs.tokens


def _flat(answer: Any) -> Any:
    items = [
        [one.name, one.arguments] if one.type == "function_call" else one.content[0].text
        for one in answer.output
    ]
    return items, answer.status, answer.usage.input_tokens, answer.usage.output_tokens


def _response(url: str, **asked: Any) -> Any:
    return _flat(openai_at(url).responses.create(**{**_FLAT, "input": ASK, **asked}))


def _response_streamed(url: str, **asked: Any) -> Any:
    deltas, last = "", None
    seen: list[str] = []
    for event in openai_at(url).responses.create(**{**_FLAT, "input": ASK, **asked}, stream=True):
        if not seen or seen[-1] != event.type:
            seen.append(event.type)
        if event.type.endswith((".output_text.delta", ".arguments.delta")):
            deltas += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            last = _flat(event.response)
    return seen, deltas, last


def _responses_stored(url: str) -> Any:
    """A second answer goes on from the first by its id, and the first is read again."""
    client = openai_at(url)
    first = client.responses.create(**_FLAT, input="Name a river.", store=True)
    second = client.responses.create(
        **_FLAT, input="And another.", previous_response_id=first.id, store=True
    )
    return _flat(first), _flat(second), _flat(client.responses.retrieve(first.id))


def _message(url: str, **asked: Any) -> Any:
    answer = anthropic_at(url).messages.create(**{**_COLD, "messages": ASK, **asked})
    return _blocks(answer)


def _blocks(answer: Any) -> Any:
    blocks = [
        [one.name, one.input] if one.type == "tool_use" else one.text for one in answer.content
    ]
    return blocks, answer.stop_reason, answer.usage.input_tokens, answer.usage.output_tokens


def _message_streamed(url: str, **asked: Any) -> Any:
    with anthropic_at(url).messages.stream(**{**_COLD, "messages": ASK, **asked}) as stream:
        seen = [event.type for event in stream]
        return sorted(set(seen)), _blocks(stream.get_final_message())


def _counted(url: str, **asked: Any) -> Any:
    return (
        anthropic_at(url)
        .messages.count_tokens(**{"model": MODEL, "messages": ASK, **asked})
        .input_tokens
    )


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"4 degrees and snow in {city}"


def _agent(url: str, kind: type, *, is_streamed: bool) -> Any:
    """Returns what an agent with a tool did: the calls, their outputs, and its last words."""

    async def run() -> Any:
        client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=CALL_S
        )
        async with client:
            agent = Agent(
                name="helper",
                instructions=SYSTEM,
                model=kind(MODEL, client),
                tools=[weather],
                model_settings=ModelSettings(
                    temperature=0, tool_choice="required", max_tokens=TURN
                ),
            )
            if not is_streamed:
                return await Runner.run(agent, "What is the weather in Oslo?", max_turns=4)
            result = Runner.run_streamed(agent, "What is the weather in Oslo?", max_turns=4)
            async for _ in result.stream_events():
                pass
            return result

    result = asyncio.run(run())
    return [_item(item) for item in result.new_items], result.final_output


def _item(item: Any) -> list[Any]:
    if item.type == "tool_call_item":
        return [item.type, item.raw_item.name, json.loads(item.raw_item.arguments)]
    return [item.type, getattr(item, "output", None)]


#: Each by its name; every one of them succeeds at an engine.
QUESTIONS: dict[str, Callable[[str], Any]] = {
    "chat": _chat,
    "chat, streamed": _chat_streamed,
    "chat of parts": lambda url: _chat(url, messages=[{"role": "user", "content": PARTS}]),
    "chat with a system's text": lambda url: _chat(
        url, messages=[{"role": "system", "content": SYSTEM}, *ASK]
    ),
    "chat with a tool": lambda url: _chat(
        url, messages=WEATHER, tools=TOOLS, tool_choice="required", max_tokens=40
    ),
    "chat with a tool, streamed": lambda url: _chat_streamed(
        url, messages=WEATHER, tools=TOOLS, tool_choice="required", max_tokens=40
    ),
    "chat with a tool of its own choice": lambda url: _chat(
        url, messages=WEATHER, tools=TOOLS, max_tokens=40
    ),
    "chat after a call": lambda url: _chat(url, messages=CALLED, tools=TOOLS),
    "chat with scores": _chat_scored,
    "chat by a schema": _chat_parsed,
    "chat that stops": lambda url: _chat(url, stop=["return"], max_tokens=40),
    "chats at once": _chats_at_once,
    "completion": lambda url: _completion(url, "def add("),
    "completion, streamed": _completion_streamed,
    "completion of several": lambda url: _completion(url, ["def add(", "def less("]),
    "completion of ids": lambda url: _completion(url, [750, 923, 7]),
    "completion of several ids": lambda url: _completion(url, [[750, 923, 7], [750, 2686, 7]]),
    "completion with its prompt": _echoed,
    "response": _response,
    "response, streamed": _response_streamed,
    "response of a text": lambda url: _response(url, input="Name a river.", instructions=SYSTEM),
    "response of parts": lambda url: _response(
        url,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Name a river."}]}],
    ),
    "response with a tool": lambda url: _response(
        url, input=WEATHER, tools=FLAT_TOOLS, tool_choice="required", max_output_tokens=40
    ),
    "response with a tool, streamed": lambda url: _response_streamed(
        url, input=WEATHER, tools=FLAT_TOOLS, tool_choice="required", max_output_tokens=40
    ),
    "response after a call": lambda url: _response(url, input=FLAT_CALLED, tools=FLAT_TOOLS),
    "responses that go on": _responses_stored,
    "message": _message,
    "message, streamed": _message_streamed,
    "message of parts": lambda url: _message(
        url, messages=[{"role": "user", "content": PARTS}], system=SYSTEM
    ),
    "message with a tool": lambda url: _message(
        url, messages=WEATHER, tools=THEIR_TOOLS, tool_choice={"type": "any"}, max_tokens=40
    ),
    "message with a tool, streamed": lambda url: _message_streamed(
        url, messages=WEATHER, tools=THEIR_TOOLS, tool_choice={"type": "any"}, max_tokens=40
    ),
    "message after a call": lambda url: _message(url, messages=THEIR_CALLED, tools=THEIR_TOOLS),
    "count of tokens": _counted,
    "count of tokens with a tool": lambda url: _counted(
        url, messages=THEIR_CALLED, tools=THEIR_TOOLS, system=SYSTEM
    ),
    "models": lambda url: [each.id for each in openai_at(url).models.list()],
    "agent by chats": lambda url: _agent(url, OpenAIChatCompletionsModel, is_streamed=False),
    "agent by chats, streamed": lambda url: _agent(
        url, OpenAIChatCompletionsModel, is_streamed=True
    ),
    "agent by responses": lambda url: _agent(url, OpenAIResponsesModel, is_streamed=False),
    "agent by responses, streamed": lambda url: _agent(url, OpenAIResponsesModel, is_streamed=True),
}


def shape(value: Any) -> Any:
    """Returns a JSON value with its types in place of texts and numbers, except an error's kind, code and field."""
    if isinstance(value, dict):
        # vLLM puts its own kinds into errors of the Messages API, the gateway those of that API.
        kept = () if value.keys() == {"type", "message"} else ("type", "code", "param")
        return {
            key: one if key in kept and not isinstance(one, dict) else shape(one)
            for key, one in value.items()
        }
    return [shape(one) for one in value] if isinstance(value, list) else type(value).__name__


def _refused(ask: Callable[[], Any]) -> Any:
    try:
        answered = ask()
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        module = type(error).__module__.partition(".")[0]
        return f"{module}.{type(error).__name__}", error.status_code, shape(error.body)
    raise AssertionError(f"no error, but {answered}")


def _posted(path: str, body: str, kind: str = "application/json") -> Callable[[str], Any]:
    """An error for what no SDK would send: its status and shape."""

    def ask(url: str) -> Any:
        answer = httpx.post(
            f"{url}{path}", content=body, headers={"content-type": kind}, timeout=CALL_S
        )
        assert answer.is_error, answer.text
        return answer.status_code, shape(answer.json())

    return ask


def _each_form(**asked: Any) -> dict[str, Callable[[str], Any]]:
    """The same mistake in each API; `asked` for chats is translated to the others."""
    texts = [{"role": "user", "content": asked.pop("text", "hello")}]
    words = texts[0]["content"]
    flat = {
        {"max_tokens": "max_output_tokens"}.get(key, key): value for key, value in asked.items()
    }
    theirs = {"extra_body": asked} if "temperature" in asked else asked
    return {
        "chat": lambda url: _refused(lambda: _chat(url, messages=texts, **asked)),
        "completion": lambda url: _refused(lambda: _completion(url, words, **asked)),
        "response": lambda url: _refused(lambda: _response(url, input=words, **flat)),
        "message": lambda url: _refused(lambda: _message(url, messages=texts, **theirs)),
        "chat, streamed": lambda url: _refused(
            lambda: _chat_streamed(url, messages=texts, **asked)
        ),
        "message, streamed": lambda url: _refused(
            lambda: _message_streamed(url, messages=texts, **theirs)
        ),
    }


_PATHS = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
}
_MISTAKES = {
    "unknown model": _each_form(model="none"),
    "too long": _each_form(text=LONG),
    "wrong temperature": _each_form(temperature=-5),
    "broken JSON": {name: _posted(path, '{"model": ') for name, path in _PATHS.items()},
    "no object": {name: _posted(path, "[]") for name, path in _PATHS.items()},
    "nothing asked": {
        name: _posted(path, json.dumps({"model": MODEL})) for name, path in _PATHS.items()
    },
    "no JSON": {name: _posted(path, "hello", "text/plain") for name, path in _PATHS.items()},
}
#: Each by its name; an engine refuses every one of them.
MISTAKES: dict[str, Callable[[str], Any]] = {
    f"{mistake}, {name}": ask for mistake, forms in _MISTAKES.items() for name, ask in forms.items()
}


#: Tokens of an answer that ends only with its client or its engine.
ENDLESS = 1500
_ENDLESS: dict[str, Any] = {**_CHAT, "max_tokens": ENDLESS}
_ON: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
_STORY: list[Any] = [{"role": "user", "content": "Write the longest story that you can."}]
_ENDLESS_COLD: dict[str, Any] = {**_COLD, "max_tokens": ENDLESS}


def long_streams(url: str) -> dict[str, Any]:
    """Opens streams that go on until somebody ends them."""
    ours, theirs = openai_at(url), anthropic_at(url)
    return {
        "chat": ours.chat.completions.create(**_ENDLESS, messages=_STORY, stream=True, **_ON),
        "completion": ours.completions.create(**_ENDLESS, prompt="def", stream=True, **_ON),
        "response": ours.responses.create(
            model=MODEL, temperature=0, max_output_tokens=ENDLESS, input=_STORY, stream=True, **_ON
        ),
        "message": theirs.messages.create(**_ENDLESS_COLD, messages=_STORY, stream=True),
    }


def give_up(url: str, seconds: float) -> None:
    """Asks for whole answers that take longer than these clients wait."""
    ours, theirs = openai_at(url, timeout=seconds), anthropic_at(url, timeout=seconds)
    asked: list[Callable[[], Any]] = [
        lambda: ours.chat.completions.create(**_ENDLESS, messages=_STORY, **_ON),
        lambda: ours.completions.create(**_ENDLESS, prompt="def", **_ON),
        lambda: ours.responses.create(
            model=MODEL, temperature=0, max_output_tokens=ENDLESS, input=_STORY, **_ON
        ),
        lambda: theirs.messages.create(**_ENDLESS_COLD, messages=_STORY),
    ]
    for ask in asked:
        with suppress(openai.APITimeoutError, anthropic.APITimeoutError):
            ask()
            raise AssertionError("it was answered in time")
