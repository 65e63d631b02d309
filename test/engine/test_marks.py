"""What a client of the Messages API marks with `cache_control` the gateway keeps in the vault, before a real engine."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from harness.clients import anthropic_at
from harness.gateway import Gateway
from harness.processes import free_port, wait_until
from harness.releases import MAIN, OLDEST
from harness.server import Server
from test_gateway import BLOCK, engines_at, line_of
from test_gateway_parity import tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.processes import Cluster

WORDS = 300
ROOM = ["--max-model-len", "4096", "--num-gpu-blocks-override", "400"]


def turns(name: str, mark: dict[str, Any] | None) -> list[Any]:
    """A chat of two blocks of text; the second one is marked."""
    texts = [f"{name} said {number}. " * WORDS for number in (1, 2)]
    blocks: list[Any] = [{"type": "text", "text": text} for text in texts]
    if mark is not None:
        blocks[-1]["cache_control"] = mark
    return [{"role": "user", "content": blocks}]


@pytest.mark.nightly
@pytest.mark.skipif(MAIN == OLDEST, reason="it has no /v1/messages with kv_transfer_params")
def test_what_a_client_marks_is_kept_in_the_vault(
    folder: Path, new_cluster: Callable[..., Cluster]
) -> None:
    place = folder / "marks"
    model = tiny_model(place / "model")
    cluster = new_cluster()
    events = (free_port(), free_port())
    line = [*line_of(*events), "--kv-transfer-config", json.dumps(cluster.transfer_config)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(line, model, place / "server.log", {}, more=ROOM))
        cluster.wait_restoring()
        gateway = Gateway(place, engines_at([server], [events]))
        stack.callback(gateway.process.end)
        client = anthropic_at(gateway.url)

        def ask(name: str, mark: dict[str, Any] | None) -> int:
            """Returns the prompt's tokens."""
            answer = client.messages.create(model=model, max_tokens=1, messages=turns(name, mark))
            return answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)

        def sessions() -> list[dict[str, Any]]:
            code, said = cluster.command("session", "ls")
            assert code == 0
            return list(said["sessions"])

        ask("nobody", None)
        assert sessions() == []
        # The gateway adds nothing before the engine has named its vault, which it does with a step.
        wait_until(lambda: ask("ana", {"type": "ephemeral"}) > 0 and bool(sessions()), "it is kept")
        tokens = ask("ana", {"type": "ephemeral", "ttl": "1h"})

        def kept() -> list[tuple[int, int]]:
            return [(one["records"], one["kept"]) for one in sessions()]

        whole = tokens // BLOCK
        wait_until(lambda: kept() == [(whole, whole)], f"all {whole} blocks are kept")
        (session,) = sessions()
        assert session["name"].startswith("cache-")
        # Another conversation is another session.
        wait_until(lambda: ask("bob", {"type": "ephemeral"}) > 0 and len(sessions()) == 2, "two")
