"""The first step of an engine on a CPU with AMX tiles: what is left to compute, where, and until when."""

import ctypes
import platform
from pathlib import Path
from typing import Any

import pytest
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.pages import amx

from .support.engine import Request
from .support.scheduler import NOTHING, Bench
from .support.sidecar import FakeSidecar, wait_until

TOKENS = 101


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "has_tiles", lambda: True)
    monkeypatch.setattr(compat, "none_hash", lambda: bytes(32))


@pytest.fixture
def shape(tiles: None) -> dict[str, Any]:
    return {}


def asked(bench: Bench, name: str, number: int) -> int:
    bench.new(Request(name, TOKENS, seed=name))
    return len(bench.prefetch(number)["groups"][0]["hashes"]) // 32


def test_until_a_larger_step_has_run_64_tokens_are_left(bench: Bench) -> None:
    assert asked(bench, "a", 1) == (TOKENS - 64) // 4
    bench.step({"a": 63}, a=list(range(1, 26)))
    assert asked(bench, "b", 2) == (TOKENS - 64) // 4
    bench.step({"a": 64}, a=list(range(1, 26)))
    assert asked(bench, "c", 3) == (TOKENS - 1) // 4


def test_the_sidecar_is_told_so_that_doctor_names_it(bench: Bench) -> None:
    bench.ask(bench.new(Request("any", 60)))
    assert [hello["amx_tiles"] for hello in bench.fake.hellos] == [1]
    bench.step({"any": 64}, any=list(range(1, 16)))
    # A sidecar that is started later sees no step of before.
    bench.fake.drop_connections()
    wait_until(lambda: len(bench.fake.hellos) >= 2, "a second hello")
    assert bench.fake.hellos[1]["amx_tiles"] == 0


def test_a_prompt_shorter_than_that_is_computed(bench: Bench) -> None:
    assert bench.ask(bench.new(Request("short", 60))) == NOTHING


def test_elsewhere_one_token_is_left(
    monkeypatch: pytest.MonkeyPatch, socket_path: str, tiles: None
) -> None:
    monkeypatch.setattr(amx, "has_tiles", lambda: False)
    with FakeSidecar(socket_path) as sidecar, Bench(socket_path, sidecar) as bench:
        assert asked(bench, "a", 1) == (TOKENS - 1) // 4
        assert "amx_tiles" not in sidecar.hellos[0]


@pytest.mark.parametrize(
    ("machine", "on_cpu", "flags", "found"),
    [
        ("x86_64", True, "flags\t: fpu amx_bf16 amx_tile amx_int8\n", True),
        ("x86_64", True, "flags\t: fpu avx512f\n", False),
        ("x86_64", False, "flags\t: fpu amx_tile\n", False),
        ("aarch64", True, "flags\t: fpu amx_tile\n", False),
    ],
)
def test_tiles_are_found_where_vllm_computes_with_them(
    machine: str,
    on_cpu: bool,
    flags: str,
    found: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(compat, "computes_on_cpu", lambda: on_cpu)
    (tmp_path / "cpuinfo").write_text(flags)
    assert amx.has_tiles(str(tmp_path / "cpuinfo")) is found


def test_without_cpuinfo_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(compat, "computes_on_cpu", lambda: True)
    assert not amx.has_tiles(str(tmp_path / "none"))


class Libc:
    """What `syscall` of the C library was asked, and what it answers."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked: list[tuple[int, ...]] = []

    def syscall(self, *numbers: int) -> int:
        self.asked.append(numbers)
        return self.answer


@pytest.mark.parametrize(("answer", "granted"), [(0, True), (-1, False)])
def test_the_kernel_is_asked_for_the_tiles(
    answer: int, granted: bool, tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    libc = Libc(answer)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    assert amx.ask_kernel() is granted
    assert libc.asked == [(158, 0x1023, 18)]


def test_where_there_are_none_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = Libc(-1)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    assert amx.ask_kernel()
    assert libc.asked == []
