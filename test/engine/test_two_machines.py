"""Two engines on two machines, which know each other's blocks only through Valkey, beside the same through a vault."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from harness.machines import Machines, can_make
from harness.published import NIGHTLY_S, folder_of, prompts
from harness.valkeys import valkey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.engine import Engines
    from harness.valkeys import Side

pytestmark = pytest.mark.nightly

MODEL = "gemma3-270m"
PROMPTS, BLOCK, BLOCKS, TAIL = 4, 32, 30, 7
#: A round trip of a millisecond, as between two racks.
ONE_WAY_US = 500
PROGRAM = valkey()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if not can_make():
        pytest.skip("named network namespaces cannot be made here")
    made = Machines(tmp_path, ONE_WAY_US)
    yield made
    made.close()


class Played:
    """What two engines did: one computed and saved on machine a, the other restored on machine b."""

    def __init__(self, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
        self.first, self.second = first, second

    def seconds(self, of: list[dict[str, Any]]) -> float:
        """Return the median time to the first token, without the first prompt, which warms the engine."""
        return float(median(each["seconds"] for each in of[1:]))


def _ask(engines: Engines, side: Side, model: str, asked: list[list[int]]) -> list[dict[str, Any]]:
    options = {"model": model, "dtype": "float32", "block_size": BLOCK, "max_model_len": 1_024}
    options |= {"num_gpu_blocks_override": 256, "kv_transfer_config": side.transfer_config}
    with engines.start(vllm=options).wait_up() as engine:
        side.wait_restoring()
        engine.call("spoil")
        answers = []
        for prompt in asked:
            answers.append(engine.call("first_token_s", prompt=prompt))
            # A prompt at a time, because the cache is too small for blocks of several that wait to be copied.
            engine.call("go_on_until", moment="saved")
            side.wait_idle()
    return answers


def _play(
    engines: Engines, machines: Machines, address: str, model: str, asked: list[list[int]]
) -> tuple[Played, int]:
    """Return what both engines answered, and how many blocks both saved."""
    near = machines.start_side("a", address)
    first = _ask(engines, near, model, asked)
    saved = near.counters()["blocks_saved"]
    near.end()
    far = machines.start_side("b", address)
    second = _ask(engines, far, model, asked)
    counters = far.counters()
    assert counters["blocks_restored_vault"] > 0
    # Blocks of windows that the first engine had given up before they were copied.
    saved += counters["blocks_saved"]
    far.end()
    assert [each["cached"] for each in first] == [0] * len(asked)
    assert [each["cached"] for each in second] == [BLOCKS * BLOCK] * len(asked)
    assert [each["tokens"] for each in second] == [each["tokens"] for each in first]
    return Played(first, second), saved


@pytest.mark.skipif(
    PROGRAM is None, reason="there is no valkey-server; TIERKV_TEST_VALKEY names it"
)
def test_what_one_machine_computed_another_restores_from_valkey_as_from_a_vault(
    machines: Machines, engines: Engines, record_property: Callable[[str, Any], None]
) -> None:
    model = folder_of(MODEL, NIGHTLY_S)
    asked = prompts(model, PROMPTS, BLOCKS * BLOCK + TAIL)
    assert PROGRAM is not None
    address = machines.start_valkey(PROGRAM)
    by_valkey, saved = _play(engines, machines, address, str(model), asked)
    # Each block was sent once and lies there once; beside them are the copies of the list of flushes, and models.
    sent = re.search(r"cmdstat_set:calls=(\d+)", machines.ask_valkey("INFO commandstats"))
    assert sent is not None
    assert int(sent.group(1)) == saved
    keys = machines.ask_valkey("KEYS tierkv:1:*")
    assert keys.startswith(f"*{saved}\r\n")
    by_vault, _ = _play(engines, machines, machines.start_vault(), str(model), asked)
    found = {
        "computed": by_valkey.seconds(by_valkey.first),
        "valkey": by_valkey.seconds(by_valkey.second),
        "vault": by_vault.seconds(by_vault.second),
    }
    for key, value in found.items():
        record_property(key, value)
    shown = ", ".join(f"{key} {value * 1e3:.0f} ms" for key, value in found.items())
    print(f"first token of {BLOCKS * BLOCK + TAIL} tokens, {2 * ONE_WAY_US} us round trip: {shown}")
