"""The gateway's tokens equal a real engine's tokens of the same prompts."""

from __future__ import annotations

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.engine import CALL_S
from harness.gateway import Gateway
from harness.models import PLAIN
from harness.processes import ROOT, free_port, wait_until
from harness.server import Server
from harness.tokens import chats, texts, write_bytes
from lab.checkpoint import write_checkpoint
from test_gateway import engines_at, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = 10_000
CHATS = 500
#: With any `tool_choice` but `auto`, the gateway leaves a chat's rendering to the engine.
TAKES_TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "pythonic"]


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[str, Server, str]]:
    """A model with a byte-level BPE, marks of turns and a template; its engine, and a gateway's address for it."""
    place = folder / "tokens"
    model = place / "model"
    write_checkpoint(model, replace(PLAIN, vocab=1024))
    write_bytes(model)
    events = (free_port(), free_port())
    with Server([*line_of(*events), *TAKES_TOOLS], str(model), place / "server.log", {}) as server:
        yield str(model), server, engines_at([server], [events])


def made_here(model: str, asked: list[tuple[str, dict[str, Any]]]) -> list[list[int] | None]:
    lines = "".join(f"{json.dumps([path, body])}\n" for path, body in asked)
    argv = ["node", "test/engine/harness/encode.js", model]
    made = subprocess.run(
        argv, cwd=ROOT, check=True, input=lines, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in made.stdout.splitlines()]


@pytest.mark.nightly
def test_texts_and_chats_become_the_engines_tokens(
    folder: Path, served: tuple[str, Server, str]
) -> None:
    model, server, told = served

    def engines(body: dict[str, Any]) -> list[int]:
        answer = json.loads(server.post("/tokenize", json.dumps(body).encode()))
        return list(answer["tokens"])

    prompts = [{"model": model, "prompt": text} for text in texts(TEXTS, 31) if text]
    talks = [{"model": model, **body} for body in chats(CHATS, 32)]
    asked = [("/v1/completions", body) for body in prompts]
    asked += [("/v1/chat/completions", body) for body in talks]
    made = made_here(model, asked)
    with ThreadPoolExecutor(4) as pool:
        theirs = list(pool.map(engines, [body for _, body in asked]))
    compared = 0
    for (_, body), ours, expected in zip(asked, made, theirs, strict=True):
        if ours is not None:
            assert ours == expected, body
            compared += 1
    assert compared > len(prompts) + CHATS / 2

    # The gateway learns the folder from the engine, compares, and then asks the engine no more.
    with contextlib.ExitStack() as stack:
        gateway = Gateway(folder / "tokens", told)
        stack.callback(gateway.process.end)
        answers = iter(talk for talk in talks if "tools" in talk and len(json.dumps(talk)) < 1200)

        def ask() -> tuple[int, int]:
            """Returns a chat's tokens as counted by the gateway and by the engine."""
            body = {**next(answers), "max_tokens": 1, "tool_choice": "auto"}
            answer, headers = gateway.ask("/v1/chat/completions", body)
            counted = int(headers["x-tierkv-hit-tokens"].split("/")[1])
            return counted, answer["usage"]["prompt_tokens"]

        def agrees() -> bool:
            shown = json.loads(gateway.command("status", "--json"))["tokenizers"]
            return [(one["state"], one["chats"], one["tools"]) for one in shown] == [
                ("agrees", True, True)
            ]

        wait_until(lambda: gateway.metric("tierkv_gateway_events_live") == [1], "events are live")
        counted, expected_count = ask()
        assert counted == expected_count
        wait_until(agrees, "the engine makes the same tokens", CALL_S)
        before = gateway.metric("tierkv_gateway_tokenized_total", 'by="engine"')
        for _ in range(3):
            counted, expected_count = ask()
            assert counted == expected_count
        assert gateway.metric("tierkv_gateway_tokenized_total", 'by="engine"') == before
        (by_gateway,) = gateway.metric("tierkv_gateway_tokenized_total", 'by="gateway"')
        assert by_gateway >= 1
