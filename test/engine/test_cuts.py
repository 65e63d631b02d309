"""A connection from gateway to engine breaks while the engine lives: it aborts the request, and gets it again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import pytest
from harness.gateway import Gateway
from harness.models import PLAIN, Models, prompt
from harness.processes import wait_until
from harness.server import FORKING, Server
from test_gateway import BLOCK, TOKENS

if TYPE_CHECKING:
    from pathlib import Path

#: First bytes of a request that computes.
COMPUTES = b"POST /v1/completions"
READ_BYTES = 1 << 16
#: Makes a close send a reset (socket(7), SO_LINGER).
AT_ONCE = struct.pack("ii", 1, 0)


class Wire:
    """A way to a server that counts the requests on it, and breaks their connections at will."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.requests = 0
        self._carrying: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # `close` alone leaves a thread in `accept`.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def cut(self) -> None:
        """Resets the connections that carried a request, at both ends."""
        for end in self._carrying:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._carrying.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listening.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                if data.startswith(COMPUTES):
                    self._carrying += [source, target]
                target.sendall(data)
                self.requests += data.startswith(COMPUTES)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.nightly
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_whose_connection_breaks_is_computed_once_and_at_its_engine(
    folder: Path, models: Models, is_stream: bool
) -> None:
    place = folder / f"cuts-{is_stream}"
    place.mkdir()
    model = models.path(PLAIN)
    line = ["vllm", "serve", "MODEL", "--block-size", str(BLOCK)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(line, model, place / "server.log", FORKING))
        # To the gateway the ways are two engines; neither is down at any time.
        wires = [stack.enter_context(Wire(server.port)) for _ in range(2)]
        names = [f"127.0.0.1:{wire.port}" for wire in wires]
        gateway = Gateway(place, f'engines = {json.dumps(names)}\npreset = "round-robin"\n')
        stack.callback(gateway.process.end)
        body: dict[str, Any] = {"model": model, "prompt": prompt(770, TOKENS), "max_tokens": 4}
        body |= {"ignore_eos": True, "temperature": 0}
        (expected,) = json.loads(server.post("/v1/completions", json.dumps(body).encode()))[
            "choices"
        ]
        other = {**body, "prompt": prompt(771, TOKENS), "stream": is_stream}
        (alone,) = json.loads(
            server.post("/v1/completions", json.dumps({**other, "stream": False}).encode())
        )["choices"]
        assert alone["text"] != expected["text"]
        computed = server.metric("vllm:prompt_tokens_total")

        core = server.core
        os.kill(core, signal.SIGSTOP)
        stack.callback(os.kill, core, signal.SIGCONT)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(gateway.text, "/v1/completions", other)
            wait_until(lambda: sum(wire.requests for wire in wires) == 1, "an engine has it")
            (taken,) = [wire for wire in wires if wire.requests]
            taken.cut()
            wait_until(lambda: sum(wire.requests for wire in wires) == 2, "it is sent again")
            os.kill(core, signal.SIGCONT)
            text = answer.result()
        assert sorted(wire.requests for wire in wires) == [0, 2]
        assert _text(text, is_stream) == alone["text"]
        # The engine aborted the first one, so it computed the prompt once.
        assert server.metric("vllm:prompt_tokens_total") - computed == TOKENS
        assert gateway.metric("tierkv_gateway_engine_up") == [1, 1]


def _text(answer: str, is_stream: bool) -> str:
    if not is_stream:
        return str(json.loads(answer)["choices"][0]["text"])
    events = [
        line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data")
    ]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
