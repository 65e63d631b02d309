"""Real clients before a gateway and a published model in a real engine: each answer and error is the engine's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anthropic
import openai
import pytest
from harness.clients import MISTAKES, MODEL, QUESTIONS, give_up, long_streams
from harness.gateway import Gateway
from harness.processes import free_port, wait_until
from harness.published import NIGHTLY_S, folder_of
from harness.releases import MAIN, OLDEST
from harness.server import FORKING, Server
from test_gateway import engines_at, line_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(MAIN == OLDEST, reason="it has neither /v1/messages nor their tools"),
]

TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
ROOM = ["--max-model-len", "2048", "--num-gpu-blocks-override", "300"]
#: Events of a stream that are read before it ends.
READ = 4
#: Seconds that an impatient client waits for a whole answer of minutes.
IMPATIENT_S = 3.0
BROKEN = "the engine broke off in the middle of its answer"


class Scene(NamedTuple):
    """An engine, and a gateway before it."""

    server: Server
    gateway: Gateway

    def is_idle(self) -> bool:
        return self.server.metric("vllm:num_requests_running") == 0


@pytest.fixture(scope="module")
def scene(folder: Path) -> Iterator[Scene]:
    place = folder / "clients"
    place.mkdir()
    model = str(folder_of("qwen25-0.5b", NIGHTLY_S))
    events = (free_port(), free_port())
    line = [*line_of(*events), "--served-model-name", MODEL, *TOOLS]
    environment = {**FORKING, "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    with Server(line, model, place / "server.log", environment, more=ROOM) as server:
        gateway = Gateway(place, engines_at([server], [events]))
        try:
            wait_until(lambda: gateway.metric("tierkv_gateway_events_live") == [1], "events come")
            yield Scene(server, gateway)
        finally:
            gateway.process.end()


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_clients_answer_is_the_engines(scene: Scene, name: str) -> None:
    ask = QUESTIONS[name]
    expected = ask(scene.server.url)
    assert ask(scene.gateway.url) == expected


@pytest.mark.parametrize("name", MISTAKES)
def test_a_clients_error_is_the_engines(scene: Scene, name: str) -> None:
    ask = MISTAKES[name]
    expected = ask(scene.server.url)
    assert ask(scene.gateway.url) == expected


def test_what_a_client_leaves_ends_at_the_engine(scene: Scene) -> None:
    streams = long_streams(scene.gateway.url)
    for stream in streams.values():
        events = iter(stream)
        for _ in range(READ):
            next(events)
    assert scene.server.metric("vllm:num_requests_running") == len(streams)
    for stream in streams.values():
        stream.close()
    wait_until(scene.is_idle, "the engine ends what nobody reads")
    give_up(scene.gateway.url, IMPATIENT_S)
    wait_until(scene.is_idle, "the engine ends what nobody waits for")


def test_a_stream_that_its_engine_breaks_off_is_an_error_to_its_client(scene: Scene) -> None:
    """Comes last, because it ends the engine."""
    streams = long_streams(scene.gateway.url)
    running = {name: iter(stream) for name, stream in streams.items()}
    for events in running.values():
        for _ in range(READ):
            next(events)
    scene.server.kill()
    ends: dict[str, str] = {}
    for name, events in running.items():
        try:
            for _ in events:
                pass
            ends[name] = "whole"
        except (openai.APIError, anthropic.APIError) as error:
            ends[name] = BROKEN if BROKEN in str(error) else str(error)
    assert ends == dict.fromkeys(streams, BROKEN)
