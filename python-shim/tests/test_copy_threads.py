"""A copy on a CPU gets one of torch's threads, or all of them where they are measured to be faster."""

import time

import pytest
import torch
from tierkv.connectors.vllm.pages.threads import TRY_BYTES, TRY_EVERY, CopyThreads, Pairs

BLOCK_BYTES = TRY_BYTES // 2
PAIRS = [(block, block + 1) for block in range(1, 9)]


class Machine:
    """Copies in no time, on a clock that says what each block takes; notes pairs and threads of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, one_s: float, all_s: float) -> None:
        self.seconds = {1: one_s, 4: all_s}
        self.calls: list[tuple[list[tuple[int, int]], int]] = []
        self._now_s = 0.0
        self._count = 4
        monkeypatch.setattr(time, "perf_counter", lambda: self._now_s)
        monkeypatch.setattr(torch, "get_num_threads", lambda: self._count)
        monkeypatch.setattr(torch, "set_num_threads", self._set)

    def _set(self, count: int) -> None:
        self._count = count

    @property
    def count(self) -> int:
        return self._count

    def copy(self, pairs: Pairs) -> None:
        self.calls.append((list(pairs), self._count))
        self._now_s += len(pairs) * self.seconds[self._count]

    def last(self, threads: CopyThreads) -> int:
        """Copy once more, in other copies than those that try; give the threads of most pairs."""
        self.calls.clear()
        threads.run(PAIRS, BLOCK_BYTES, self.copy)
        assert [pair for pairs, _ in self.calls for pair in pairs] == PAIRS
        assert self._count == 4
        return max(self.calls, key=lambda call: len(call[0]))[1]


@pytest.mark.parametrize(
    ("one_s", "all_s", "wanted"),
    [
        pytest.param(2e-3, 16e-3, 1, id="a thread has lost its processor"),
        pytest.param(2e-3, 0.6e-3, 4, id="idle processors"),
        pytest.param(2e-3, 1.9e-3, 1, id="no clear gain"),
    ],
)
def test_the_faster_number_is_taken(
    monkeypatch: pytest.MonkeyPatch, one_s: float, all_s: float, wanted: int
) -> None:
    machine, threads = Machine(monkeypatch, one_s, all_s), CopyThreads()
    assert machine.last(threads) == 1
    threads.run(PAIRS, BLOCK_BYTES, machine.copy)
    assert machine.last(threads) == wanted
    tried = 0
    for _ in range(2 * TRY_EVERY):
        assert machine.last(threads) == wanted
        tried += sum(count != wanted for _, count in machine.calls)
        assert all(len(pairs) <= 2 for pairs, count in machine.calls if count != wanted)
    assert tried == 2


def test_a_machine_that_gets_busy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, threads = Machine(monkeypatch, 2e-3, 0.6e-3), CopyThreads()
    for _ in range(3):
        threads.run(PAIRS, BLOCK_BYTES, machine.copy)
    assert threads.takes_all
    machine.seconds[4] = 16e-3
    threads.run(PAIRS, BLOCK_BYTES, machine.copy)
    assert not threads.takes_all


def test_threads_are_as_before_after_a_copy_that_fails() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def fail(_: Pairs) -> None:
        raise ValueError("no such block")

    try:
        with pytest.raises(ValueError, match="no such block"):
            CopyThreads().run(PAIRS, BLOCK_BYTES, fail)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_one_thread_is_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("changed"))
    seen: list[int] = []
    for _ in range(TRY_EVERY):
        CopyThreads().run(PAIRS, BLOCK_BYTES, lambda pairs: seen.append(len(pairs)))
    assert seen == [len(PAIRS)] * TRY_EVERY
