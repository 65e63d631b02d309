"""Two engines on two machines, which know each other's blocks only through Valkey, beside the same through a vault."""

from __future__ import annotations

import os
import re
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from harness.machines import Machines, can_make
from harness.models import Models, prompt
from harness.valkeys import valkey
from lab.checkpoint import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.engine import Engines

PROGRAM = valkey()

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        PROGRAM is None, reason="there is no valkey-server; TIERKV_TEST_VALKEY names it"
    ),
]

#: 24 KiB of blocks a token, and so much to compute that a restore is far sooner on any machine.
MODEL = Spec(layers=6, hidden=1024, heads=16, kv_heads=8, head_dim=64, vocab=512, dtype="float32")
#: The first prompt warms the engines.
PROMPTS, BLOCK, BLOCKS, TAIL = 6, 32, 30, 7
#: A round trip of a millisecond, as between two racks.
ONE_WAY_US = 500
#: The least part of a prompt's full blocks that the second machine restores.
LEAST = 0.95

Json = dict[str, Any]


@pytest.fixture
def machines(tmp_path: Path, engines: Engines) -> Iterator[Machines]:
    if not can_make():
        pytest.skip("named network namespaces cannot be made here")
    made = Machines(tmp_path, ONE_WAY_US)
    yield made
    engines.end_all()
    made.close()


class Pair:
    """An engine and its sidecar on each of two machines, before one store."""

    def __init__(self, machines: Machines, engines: Engines, model: str, store: str) -> None:
        self.near, self.far = (machines.start_side(name, store) for name in "ab")
        self.first, self.second = (
            engines.start(
                space=machines.path(name),
                environment={"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"},
                vllm={
                    "model": model,
                    "dtype": MODEL.dtype,
                    "block_size": BLOCK,
                    "max_model_len": 1_024,
                    "kv_transfer_config": side.transfer_config,
                },
            )
            for name, side in (("a", self.near), ("b", self.far))
        )
        for engine, side in ((self.first, self.near), (self.second, self.far)):
            engine.wait_up()
            side.wait_restoring()
            assert network(engine.pid) == network(side.sidecar.child.pid) != network(os.getpid())
        self.computed: list[Json] = []
        self.restored: list[Json] = []

    def play(self, text: list[int]) -> list[int]:
        """Compute a prompt on the first machine, and ask the second one for it; return the first token of both."""
        for engine in (self.first, self.second):
            engine.empty()
        computed = self.first.call("first_token_s", prompt=text)
        # The last blocks are offered with a later step.
        self.first.call("go_on_until", moment="saved")
        self.computed.append(computed)
        self.near.wait_count("blocks_saved", BLOCKS * len(self.computed))
        restored = self.second.call("first_token_s", prompt=text)
        self.restored.append(restored)
        assert computed["cached"] == 0
        assert restored["tokens"] == computed["tokens"]
        self._compare(text, restored["cached"] // BLOCK)
        return list(computed["tokens"])

    def _compare(self, text: list[int], blocks: int) -> None:
        """Expect the same bytes in the pages of restored blocks, and the same tokens that follow from them."""
        pages = [engine.call("pages", prompt=text) for engine in (self.first, self.second)]
        assert len(pages[0]) == BLOCKS
        assert pages[1][:blocks] == pages[0][:blocks]
        said = [engine.ask(text)["tokens"] for engine in (self.first, self.second)]
        assert said[1] == said[0]

    def share(self) -> float:
        """Return the part of all full blocks that the second machine restored."""
        restored = sum(int(each["cached"]) for each in self.restored)
        return restored / (len(self.restored) * BLOCKS * BLOCK)

    def saved(self) -> tuple[int, int]:
        """Return the blocks that each machine brought to the store and found not to be there."""
        sides = (self.near, self.far)
        for side in sides:
            side.wait_idle()
        first, second = (int(side.counters()["blocks_saved"]) for side in sides)
        return first, second


def network(pid: int) -> str:
    """Return the name of a process's network."""
    return os.readlink(f"/proc/{pid}/ns/net")


def seconds(answers: list[Json]) -> list[float]:
    """Return the times to the first token, without that of the first prompt."""
    return [each["seconds"] for each in answers[1:]]


def ratio(of: list[float], to: list[float]) -> float:
    """Return the median of the ratios prompt by prompt."""
    return median(one / other for one, other in zip(of, to, strict=True))


def test_what_one_machine_computed_another_restores_from_valkey_as_from_a_vault(
    machines: Machines,
    engines: Engines,
    models: Models,
    record_property: Callable[[str, Any], None],
) -> None:
    assert PROGRAM is not None
    stores = {"valkey": machines.start_valkey(PROGRAM), "vault": machines.start_vault()}
    model = models.path(MODEL)
    pairs = {name: Pair(machines, engines, model, at) for name, at in stores.items()}
    for number in range(PROMPTS):
        text = prompt(700 + number, BLOCKS * BLOCK + TAIL)
        order = sorted(pairs, reverse=number % 2 == 1)
        said = [pairs[name].play(text) for name in order]
        assert said[1] == said[0]

    once = PROMPTS * BLOCKS
    for name, pair in pairs.items():
        assert pair.share() >= LEAST, name
        assert pair.saved() == (once, 0), name
    # Each block was sent once and lies there once.
    sent = re.search(r"cmdstat_set:calls=(\d+)", machines.ask_valkey("INFO commandstats"))
    assert sent is not None
    assert int(sent.group(1)) == once
    assert machines.ask_valkey("KEYS tierkv:1:*").startswith(f"*{once}\r\n")

    valkey_s, vault_s = (seconds(pairs[name].restored) for name in ("valkey", "vault"))
    computed_s = {name: seconds(pair.computed) for name, pair in pairs.items()}
    found = {
        "computed_ms": median(computed_s["valkey"] + computed_s["vault"]) * 1e3,
        "valkey_ms": median(valkey_s) * 1e3,
        "vault_ms": median(vault_s) * 1e3,
        "valkey_over_computed": ratio(valkey_s, computed_s["valkey"]),
        "vault_over_computed": ratio(vault_s, computed_s["vault"]),
        "valkey_over_vault": ratio(valkey_s, vault_s),
    }
    for key, value in found.items():
        record_property(key, value)
    shown = ", ".join(f"{key} {value:.3g}" for key, value in found.items())
    print(f"first token of {BLOCKS * BLOCK + TAIL} tokens, {2 * ONE_WAY_US} us round trip: {shown}")
