"""Autostart with the real `tierkv sidecar`: one for all engines, apart from them, gone when nobody needs it."""

import contextlib
import logging
import os
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.api import compat
from tierkv.connectors.vllm.engine.scheduler import SchedulerShim
from tierkv.connectors.vllm.link import autostart
from tierkv.connectors.vllm.link.autostart import Autostart
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame
from tierkv.connectors.vllm.link.settings import Settings

from .support.engine import FullAttentionSpec, kv_cache_config, make_group, vllm_config
from .support.sidecar import wait_until

#: The program is started by the engine's launcher and starts a vault in turn, on a machine that does other things too.
START_S = 60.0
IDLE_EXIT_S = 2
#: No call of the engine's thread may take longer, however busy the machine.
CALL_MAX_S = 0.25


class Engine:
    """As much of an engine as a sidecar sees: the scheduler's channel."""

    def __init__(self, settings: Settings, name: str) -> None:
        hello = {
            "t": "hello",
            "protocol": limits.LOCAL_PROTOCOL,
            "role": "scheduler",
            "engine": name,
            "rank": 0,
        }
        hello |= {"world": 1, "shards": 1, "pid": os.getpid(), "shim": "test", "vllm": "test"}
        start = Autostart(settings).attempt
        self.channel = Channel(settings.socket, hello, self, Counters().take_changes, start)

    def on_open(self, welcome: Frame) -> None: ...

    def on_frame(self, frame: Frame) -> None: ...

    def on_close(self) -> None: ...


@pytest.fixture
def settings(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A socket nobody listens on, a configuration for who will, and no process of it afterwards."""
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 0.2)
    config = Path(socket_path).with_name("tierkv.toml")
    config.write_text(
        f'[vault]\nmax_bytes = "32MiB"\n[sidecar]\nidle_exit_s = {IDLE_EXIT_S}\n', "utf-8"
    )
    yield Settings(socket_path, "test", str(config))
    for pid in processes(socket_path):
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(pid, signal.SIGKILL)


def processes(text: str, word: str = "") -> list[int]:
    """Those whose command line has both."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            line = read(entry / "cmdline").replace(b"\0", b" ").decode(errors="replace")
            if text in line and word in line:
                found.append(int(entry.name))
    return found


def read(path: Path) -> bytes:
    """Nothing of a process that has just ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def children() -> list[int]:
    """Processes, also dead ones, that this one would have to collect."""
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in read(task / "children").split()]


def owner_of(path: str) -> int:
    """Tell who listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(path)
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def longest_call_until_up(engines: list[Engine]) -> float:
    """What the engine's thread does all the time, until the sidecar is there."""
    longest = 0.0

    def are_up() -> bool:
        nonlocal longest
        started = time.perf_counter()
        up = [engine.channel.is_up for engine in engines]
        for engine in engines:
            engine.channel.send({"t": "counts", "counters": {}})
        longest = max(longest, time.perf_counter() - started)
        return all(up)

    wait_until(are_up, "a sidecar was started and answers", START_S)
    return longest


def test_two_engines_start_one_sidecar_apart_from_both(settings: Settings) -> None:
    before = children()
    processors = os.sched_getaffinity(0)
    engines = [Engine(settings, "a"), Engine(settings, "b")]
    # The helper threads inherit it, as they do in vLLM's worker.
    os.sched_setaffinity(0, {min(processors)})
    try:
        for engine in engines:
            engine.channel.start()
    finally:
        os.sched_setaffinity(0, processors)
    assert longest_call_until_up(engines) < CALL_MAX_S

    pid = owner_of(settings.socket)
    log = Path(f"{settings.socket}.log")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    wait_until(lambda: '"msg":"sidecar ready"' in log.read_text("utf-8"), "all is up", START_S)
    (vault,) = processes(settings.socket, " vault ")
    assert processes(settings.socket, " sidecar ") == [pid]
    assert owner_of(f"{settings.socket}.vault") == vault
    assert os.getsid(pid) == pid
    for started in (pid, vault):
        assert os.sched_getaffinity(started) >= processors
    assert children() == before

    engines[0].channel.close()
    time.sleep(IDLE_EXIT_S + 1)
    assert processes(settings.socket, " sidecar ") == [pid], "one engine still needs it"
    engines[1].channel.close()
    wait_until(lambda: not processes(settings.socket), "sidecar and vault ended", START_S)
    assert f"no engine for {IDLE_EXIT_S} s" in log.read_text("utf-8")
    left = {path.name for path in log.parent.iterdir()}
    assert left == {"tierkv.toml", "s.sock.log", "s.sock.autostart"}


def test_a_killed_sidecar_takes_its_vault_along(settings: Settings) -> None:
    engine = Engine(settings, "a")
    engine.channel.start()
    longest_call_until_up([engine])
    wait_until(lambda: processes(settings.socket, " vault "), "the vault runs", START_S)
    engine.channel.close()
    os.kill(owner_of(settings.socket), signal.SIGKILL)
    wait_until(lambda: not processes(settings.socket), "the vault ended, too", START_S)


def stand_in(
    monkeypatch: pytest.MonkeyPatch, folder: Path, script: str = 'echo "$@" >> "$0.out"; env'
) -> Path:
    """A shell script in the place of the command; gives the file it writes a line to for each start."""
    path = folder / "command"
    path.write_text(script, "utf-8")
    monkeypatch.setattr(autostart, "sidecar_command", lambda: ["/bin/sh", str(path)])
    return folder / "command.out"


def test_a_sidecar_that_is_restarted_by_others_has_time_to_come_back(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stand_in(monkeypatch, tmp_path)
    monkeypatch.setattr(limits, "AUTOSTART_GRACE_S", 0.5)
    engine = Autostart(settings)
    engine.served()
    engine.attempt()
    engine.served()
    gone_at = time.monotonic()
    while not out.exists():
        engine.attempt()
        assert time.monotonic() - gone_at < 30
        time.sleep(0.01)
    assert time.monotonic() - gone_at >= 0.5


def test_many_attempts_of_many_engines_are_one_start(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = stand_in(monkeypatch, tmp_path)
    engines = [Autostart(settings) for _ in range(5)]
    for engine in engines * 3:
        engine.attempt()
    wait_until(lambda: out.exists() and out.read_text("utf-8").endswith("\n"), "it was started")
    line = f"sidecar --exit-when-idle --socket {settings.socket} --config {settings.config_path}\n"
    assert out.read_text("utf-8") == line

    monkeypatch.setattr(limits, "AUTOSTART_EVERY_S", 0.0)
    Autostart(settings).attempt()
    wait_until(lambda: out.read_text("utf-8") == line * 2, "and later again")
    log = Path(f"{settings.socket}.log").read_text("utf-8")
    assert "PATH=" in log
    assert "OMP_" not in log


def test_without_a_file_the_sidecar_gets_the_socket_alone(
    socket_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stand_in(monkeypatch, tmp_path)
    Autostart(Settings(socket_path, "test")).attempt()
    wait_until(lambda: out.exists() and out.read_text("utf-8").endswith("\n"), "it was started")
    assert out.read_text("utf-8") == f"sidecar --exit-when-idle --socket {socket_path}\n"


def test_a_place_that_others_may_enter_is_left_alone(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = stand_in(monkeypatch, tmp_path)
    folder = Path(settings.socket).parent
    folder.chmod(0o755)
    monkeypatch.setattr(limits, "AUTOSTART_EVERY_S", 0.0)
    starter = Autostart(settings)
    for _ in range(3):
        starter.attempt()
    assert [record.message for record in caplog.records] == [
        f"tierKV: no sidecar at {settings.socket}: cannot start one: "
        f"{folder} must be a directory of this user with mode 700"
    ]
    assert not out.exists()
    assert [path.name for path in folder.iterdir()] == ["tierkv.toml"]


def test_no_command_is_said_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(autostart, "sidecar_command", lambda: None)
    monkeypatch.setattr(limits, "AUTOSTART_EVERY_S", 0.0)
    starter = Autostart(settings)
    for _ in range(3):
        starter.attempt()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no `tierkv` command" in record.message


def test_a_launcher_that_hangs_is_given_up(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = children()
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time\ntime.sleep(600)\n", "utf-8")
    monkeypatch.setattr(autostart, "_DETACH", hangs)
    monkeypatch.setattr(limits, "AUTOSTART_LAUNCH_S", 0.2)
    started = time.perf_counter()
    Autostart(settings).attempt()
    assert time.perf_counter() - started < 5
    assert "timed out after 0.2 seconds" in caplog.text
    assert children() == before
    assert not processes(str(hangs))


def test_a_log_that_has_grown_too_long_starts_anew(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stand_in(monkeypatch, tmp_path, 'echo started >> "$0.out"')
    monkeypatch.setattr(limits, "AUTOSTART_EVERY_S", 0.0)
    monkeypatch.setattr(limits, "AUTOSTART_LOG_BYTES_MAX", 10)
    log = Path(f"{settings.socket}.log")
    for size, left in ((10, 10), (11, 0)):
        log.write_bytes(b"x" * size)
        out.unlink(missing_ok=True)
        Autostart(settings).attempt()
        wait_until(out.exists, "it was started")
        assert log.stat().st_size == left


def test_a_log_that_is_a_link_is_not_followed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stand_in(monkeypatch, tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("precious", "utf-8")
    Path(f"{settings.socket}.log").symlink_to(precious)
    Autostart(settings).attempt()
    assert precious.read_text("utf-8") == "precious"
    assert not out.exists()


def test_what_cannot_be_run_is_said_in_the_log(settings: Settings, tmp_path: Path) -> None:
    Autostart(settings)._launch([str(tmp_path / "none")])
    log = Path(f"{settings.socket}.log")
    wait_until(lambda: "cannot run" in log.read_text("utf-8"), "it says so")
    assert sys.executable not in log.read_text("utf-8")


@pytest.mark.parametrize("wanted", [True, False])
def test_the_schedulers_side_starts_one_unless_told_not_to(
    wanted: bool, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[None] = []
    monkeypatch.setattr(autostart, "sidecar_command", lambda: attempts.append(None))
    monkeypatch.setattr(compat, "check_hash_root", lambda: None)
    settings = Settings(socket_path, "test", autostart=wanted)
    cache = kv_cache_config(FullAttentionSpec())
    shim = SchedulerShim(vllm_config(), settings, [make_group()], cache)
    try:
        if wanted:
            wait_until(lambda: attempts, "an attempt")
        time.sleep(0.3)
        assert bool(attempts) == wanted
    finally:
        shim.shutdown()
