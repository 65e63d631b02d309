"""The shim's failpoints: each fails, waits and crashes; the engine's thread never sees more of it than a miss."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api.metadata import StepMetadata
from tierkv.connectors.vllm.link import failpoint

from .support.sidecar import FakeSidecar, pairs, wait_until
from .support.worker import Rank

SLEEP_MS = 50


@pytest.fixture(autouse=True)
def disarmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    yield
    failpoint.arm(None)


@pytest.fixture
def bench(socket_path: str) -> Iterator[Rank]:
    with FakeSidecar(socket_path) as sidecar, Rank(socket_path, sidecar) as made:
        made.give_arena()
        made.give_credits((4, 9), (2, 7))
        yield made


def _frame(bench: Rank) -> None:
    """Frames go unheard until the connection is another one, which is asked for everything anew."""
    bench.fake.send({"t": "credits", "arena": 1, "slots": pairs((1, 1))})
    wait_until(lambda: bench.shim.status()["credits"] != 2, "the frame, or the end")


def _load(bench: Rank) -> None:
    arena = bench.arenas[-1]
    arena.write(3, b"\x11" * arena.slot_bytes)
    before = bench.page(6)
    bench.load([6], [3])
    received, failed = _finished(bench)
    assert (received, failed) in (({"r"}, set()), (set(), {"r"}))
    if failed:
        assert bench.page(6) == before, "a load that failed leaves no byte"
    else:
        assert bench.page(6) == b"\x11" * arena.slot_bytes


def _finished(bench: Rank) -> tuple[set[str], set[str]]:
    kept: list[tuple[set[str], set[str]]] = []

    def is_reported() -> bool:
        kept.append(bench.shim.take_finished())
        return any(kept[-1])

    wait_until(is_reported, "the report")
    return kept[-1]


def _step(bench: Rank) -> None:
    bench.shim.begin_step(StepMetadata(has_forward=True, tokens=4, attended=16))


def _save(bench: Rank) -> None:
    assert bench.save(3, ticket=11) == {11: 1}, "the block is let go, sent or not"
    counted = bench.shim.counters
    assert counted.get("blocks_offered") + counted.get("dropped_save_no_sidecar") == 1


STEPS: dict[str, Callable[[Rank], None]] = {
    "shim.frame.read": _frame,
    "shim.load.copy": _load,
    "shim.step.begun": _step,
    "shim.save.copied": _save,
}


def test_every_failpoint_has_its_step() -> None:
    assert set(STEPS) == set(failpoint.FAILPOINTS)


@pytest.mark.parametrize("action", ["return", f"sleep({SLEEP_MS})"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_fails_or_waits_is_a_miss_at_most(
    bench: Rank, name: str, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert failpoint.arm(f"{name}=1*{action}") == 1
    started = time.monotonic()
    STEPS[name](bench)
    said = f"failpoint {name} acts: {action.partition('(')[0]}"
    wait_until(lambda: said in caplog.text, "it to act (else: void)")
    if action != "return":
        assert time.monotonic() - started >= SLEEP_MS / 1000


def test_after_a_failpoint_the_shim_serves_on(bench: Rank) -> None:
    failpoint.arm("shim.frame.read=1*return;shim.save.copied=1*return")
    _frame(bench)
    wait_until(lambda: not bench.shim.status()["arena"], "the end of the connection")
    bench.give_arena(2)
    bench.give_credits((5, 1), (1, 1), arena_id=2)
    assert bench.save(3) == {1: 1}
    assert bench.save(5, ticket=2) == {2: 1}
    assert bench.shim.counters.get("blocks_offered") == 1


CRASH = """
import sys
from tierkv.connectors.vllm.link import failpoint
failpoint.arm(sys.argv[1] + "=2*off->1*abort")
print(failpoint.fails(sys.argv[1]), failpoint.fails(sys.argv[1]), flush=True)
failpoint.fails(sys.argv[1])
"""


@pytest.mark.parametrize("name", STEPS)
def test_a_crash_is_one(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CRASH, name], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout) == (-9, "False False\n")


def test_none_is_armed_without_a_word_of_it() -> None:
    assert (
        failpoint.arm(None) == failpoint.arm("") == failpoint.arm("sidecar.fetch.begun=abort") == 0
    )
    assert not failpoint.fails("shim.load.copy")


@pytest.mark.parametrize(
    "text", ["shim.x=return", "shim.load.copy=fail", "shim.load.copy=sleep", "x"]
)
def test_what_it_does_not_know_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(ValueError, match=r"TIERKV_FAILPOINTS = .*; unset it"):
        failpoint.arm(text)
