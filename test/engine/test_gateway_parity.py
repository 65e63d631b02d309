"""What the gateway knows of a prompt is what the engine computes: its tokens, and which of its blocks are held."""

from __future__ import annotations

import os
import shutil
import time
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from harness.forms import Asked, Used, requests, used
from harness.gateway import Gateway
from harness.processes import free_port, wait_until
from harness.published import NIGHTLY_S, folder_of
from harness.releases import MAIN, OLDEST
from harness.server import FORKING, Server
from lab.checkpoint import Spec, write_checkpoint
from test_gateway import BLOCK, SPECULATION_S, engines_at, line_of

if TYPE_CHECKING:
    from collections.abc import Callable

#: Each is asked twice, so the engine gets twice as many.
REQUESTS = int(os.environ.get("TIERKV_TEST_REQUESTS", "1000"))
AT_ONCE = 8
#: A published tokenizer and template before weights that compute in no time.
TOKENIZER = "qwen25-0.5b"
TINY = Spec(layers=1, hidden=64, heads=1, kv_heads=1, head_dim=64, vocab=151_936, dtype="float32")
#: All prompts stay in the engine's memory.
ROOM = ["--max-model-len", "4096", "--num-gpu-blocks-override", "40000", "--max-num-seqs", "8"]
TAKES_ALL = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
#: vLLM 0.32 serves its `/render` routes only so.
TAKES_ALL += ["--trust-request-chat-template", "--enable-scale-out"]


class Told(NamedTuple):
    """The gateway's count of tokens and of those held, null where it knows neither; and the engine's own."""

    ours: Used | None
    engines: Used


def tiny_model(folder: Path) -> str:
    write_checkpoint(folder, TINY)
    published = folder_of(TOKENIZER, NIGHTLY_S)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(published / name, folder / name)
    return str(folder)


def _ask(gateway: Gateway, asked: Asked) -> Told | str:
    """Returns the engine's refusal, if it refuses."""
    try:
        answer, headers = gateway.ask(asked.path, asked.body)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()[:300]}"
    told = headers.get("x-tierkv-hit-tokens")
    ours = None
    if told is not None:
        held, tokens = told.split("/")
        ours = Used(int(tokens), int(held))
    return Told(ours, used(asked.path, answer))


@pytest.mark.nightly
@pytest.mark.skipif(MAIN == OLDEST, reason="it renders neither /v1/messages nor /v1/responses")
def test_the_gateway_knows_a_prompt_as_the_engine_computes_it(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    place = folder / "parity"
    model = tiny_model(place / "model")
    events = (free_port(), free_port())
    line = [*line_of(*events), *TAKES_ALL]
    everything = requests(REQUESTS, 44, model)
    with Server(line, model, place / "server.log", FORKING, more=ROOM) as server:
        gateway = Gateway(place, engines_at([server], [events]))
        try:
            wait_until(lambda: gateway.metric("tierkv_gateway_events_live") == [1], "events come")

            def ask(asked: Asked) -> Told | str:
                return _ask(gateway, asked)

            with ThreadPoolExecutor(AT_ONCE) as pool:
                first = list(pool.map(ask, everything))
                # Until then the gateway believes what it sent, not what it heard.
                time.sleep(SPECULATION_S)
                second = list(pool.map(ask, everything))
        finally:
            gateway.process.end()
    refused = {
        asked.form: told
        for asked, told in zip(everything, first, strict=True)
        if isinstance(told, str)
    }
    assert not refused
    unknown, wrong, held = Counter[str](), [], 0
    for asked, *both in zip(everything, first, second, strict=True):
        for is_again, told in enumerate(both):
            assert isinstance(told, Told), (asked.form, told)
            if told.ours is None:
                unknown[asked.form] += 1
                continue
            # The first time others may be computing the same block at once.
            expected = told.engines if is_again else told.engines._replace(cached=told.ours.cached)
            if told.ours != expected:
                wrong.append((asked.form, bool(is_again), told))
            held += told.engines.cached if is_again else 0
    record_property("unknown", dict(unknown))
    record_property("held", held)
    print({"wrong": len(wrong), "unknown": dict(unknown), "held": held, "requests": 2 * REQUESTS})
    assert not wrong, (len(wrong), wrong[:10])
    assert set(unknown) == {asked.form for asked in everything if not asked.is_known}
    # Otherwise two equal zeros would prove nothing.
    assert held > REQUESTS * BLOCK
