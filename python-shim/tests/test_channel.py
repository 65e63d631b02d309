"""The channel and a scripted sidecar on a real socket: absent, hung, refusing, foreign, slow, dying, talking rot."""

import logging
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.frames import Frame, encode

from .support.sidecar import WELCOME, FakeSidecar, wait_until

OURS = limits.LOCAL_PROTOCOL
HELLO: Frame = {
    "t": "hello",
    "protocol": OURS,
    "role": "scheduler",
    "engine": "e",
    "rank": 0,
}
#: No call of the engine's thread may take longer, on a machine that does other things too.
CALL_MAX_S = 2.0

Connect = Callable[[str], "Ear"]


class Ear:
    """A listener that writes down what it hears, and the channel it listens to."""

    def __init__(self, path: str) -> None:
        self.heard: list[str] = []
        self.frames: list[Frame] = []
        self.threads: set[int] = set()
        self.counters = Counters()
        self.channel = Channel(path, HELLO, self, self.counters.take_changes)

    def on_open(self, welcome: Frame) -> None:
        self._note("open")

    def on_frame(self, frame: Frame) -> None:
        self._note("frame")
        self.frames.append(frame)
        if frame["t"] == "nonsense":
            raise KeyError("field")

    def on_close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        self.heard.append(what)
        self.threads.add(threading.get_ident())

    def is_up(self) -> bool:
        return self.channel.is_up


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Gives started channels that reconnect quickly, and ends them."""
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 0.05)
    monkeypatch.setattr(limits, "PING_EVERY_S", 0.05)
    ears: list[Ear] = []

    def start(path: str) -> Ear:
        ears.append(Ear(path))
        ears[-1].channel.start()
        return ears[-1]

    yield start
    for ear in ears:
        ear.channel.close()


def send_in_time(ear: Ear, frame: Frame) -> bool:
    started = time.perf_counter()
    sent = ear.channel.send(frame)
    assert time.perf_counter() - started < CALL_MAX_S
    return sent


def test_after_welcome_frames_pass_in_order_both_ways(socket_path: str, connect: Connect) -> None:
    with FakeSidecar(socket_path) as sidecar:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        for number in range(100):
            assert ear.channel.send({"t": "x", "n": number})
        assert [frame["n"] for frame in sidecar.expect("x", 100)] == list(range(100))
        sidecar.send(*({"t": "y", "n": number} for number in range(100)))
        wait_until(lambda: len(ear.frames) == 100, "all frames")
        assert [frame["n"] for frame in ear.frames] == list(range(100))
        assert sidecar.hellos == [HELLO]
        assert threading.get_ident() not in ear.threads


def test_without_a_sidecar_nothing_waits_and_a_late_one_is_found(
    socket_path: str, connect: Connect
) -> None:
    ear = connect(socket_path)
    for _ in range(50):
        assert not ear.channel.is_up
        assert not send_in_time(ear, {"t": "x"})
    with FakeSidecar(socket_path) as sidecar:
        wait_until(ear.is_up, "the channel is up")
        assert ear.channel.send({"t": "x", "n": 1})
        assert sidecar.expect("x") == [{"t": "x", "n": 1}]


def test_a_killed_sidecar_is_noticed_and_its_successor_found(
    socket_path: str, connect: Connect
) -> None:
    ear = connect(socket_path)
    for life in range(3):
        with FakeSidecar(socket_path):
            wait_until(ear.is_up, f"up in life {life}")
        wait_until(lambda: not ear.is_up(), f"down after life {life}")
        wait_until(lambda: len(ear.heard) % 2 == 0, "on_close")
        assert not send_in_time(ear, {"t": "x"})
        os.unlink(socket_path)
    assert ear.heard == ["open", "close"] * 3


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"t": "refuse", "code": "X", "message": "no room for you"}, "no room for you"),
        ({**WELCOME, "protocol": 99}, f"speaks local protocol 99, this shim {OURS}"),
        ({"t": "pong", "n": 1}, "answered hello with 'pong'"),
        ({"t": "welcome"}, f"speaks local protocol None, this shim {OURS}"),
    ],
    ids=["refuse", "foreign", "no welcome", "no protocol"],
)
def test_a_refusal_is_logged_once_and_the_engine_runs_on(
    socket_path: str,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    answer: Frame,
    complaint: str,
) -> None:
    with caplog.at_level(logging.INFO, "tierkv.shim"), FakeSidecar(socket_path, answer) as fake:
        ear = connect(socket_path)
        wait_until(lambda: len(fake.hellos) >= 4, "four attempts")
        assert not ear.channel.is_up
        assert ear.heard == []
        complaints = [text for text in caplog.messages if complaint in text]
        assert len(complaints) == 1
        assert socket_path in complaints[0]
        fake.answer = WELCOME
        wait_until(ear.is_up, "accepted after all")
        assert f"tierKV: sidecar at {socket_path}: connected" in caplog.messages


def test_a_sidecar_that_is_still_starting_is_no_warning(
    socket_path: str,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absences: list[OSError] = []
    note = Channel._note_absence

    def counted(channel: Channel, error: OSError) -> None:
        note(channel, error)
        absences.append(error)

    monkeypatch.setattr(Channel, "_note_absence", counted)
    with caplog.at_level(logging.INFO, "tierkv.shim"):
        ear = connect(socket_path)
        wait_until(lambda: len(absences) >= 2, "two attempts")
        assert caplog.messages == []
        with FakeSidecar(socket_path):
            wait_until(ear.is_up, "the first sidecar")
        assert caplog.messages == [f"tierKV: sidecar at {socket_path}: connected"]
        os.unlink(socket_path)
        seen = len(absences)
        wait_until(lambda: len(absences) > seen, "its absence")
        assert any("there is no socket; the engine runs on" in text for text in caplog.messages)
        with FakeSidecar(socket_path):
            wait_until(ear.is_up, "its successor")
        assert caplog.messages[-1] == f"tierKV: sidecar at {socket_path}: connected again"


def test_a_sidecar_that_does_not_come_is_warned_of(
    socket_path: str,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SIDECAR_START_S", 0.0)
    with caplog.at_level(logging.INFO, "tierkv.shim"):
        connect(socket_path)
        wait_until(lambda: "there is no socket" in caplog.text, "the warning")


def test_a_sidecar_that_never_answers_hello_is_given_up(
    socket_path: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELLO_TIMEOUT_S", 0.1)
    with FakeSidecar(socket_path, None) as fake:
        ear = connect(socket_path)
        wait_until(lambda: len(fake.hellos) >= 2, "a second attempt")
        assert not ear.channel.is_up
        assert not send_in_time(ear, {"t": "x"})


def test_f19_a_hung_sidecar_is_taken_for_down_and_for_up_when_it_speaks_again(
    socket_path: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SILENCE_MAX_S", 0.3)
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        time.sleep(3 * 0.3)
        assert ear.channel.is_up  # answered pings keep it up
        fake.reads.clear()
        wait_until(lambda: not ear.is_up(), "silence is noticed")
        fake.reads.set()
        wait_until(ear.is_up, "the channel is up again")
        assert ear.heard.count("open") == 1


def test_f24_a_welcome_our_side_cannot_use_is_no_connection(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    ear = Ear(socket_path)
    monkeypatch.setattr(ear, "on_open", lambda welcome: welcome["no such field"])
    with FakeSidecar(socket_path) as fake:
        ear.channel.start()
        wait_until(lambda: len(fake.hellos) >= 2, "a second attempt")
        wait_until(lambda: not ear.channel.is_up, "down between attempts")
        assert not ear.channel.send({"t": "x"})
        ear.channel.close()


def test_suspicion_ends_with_the_next_word(socket_path: str, connect: Connect) -> None:
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        fake.reads.clear()
        ear.channel.suspect()
        assert not ear.channel.is_up
        fake.reads.set()
        wait_until(ear.is_up, "the channel is up again")


def test_a_sidecar_that_does_not_read_is_given_up_and_sending_never_waits(
    socket_path: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_QUEUE_BYTES_MAX", 1 << 20)
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        fake.reads.clear()
        frame: Frame = {"t": "x", "b": bytes(100_000)}
        wait_until(lambda: not send_in_time(ear, frame), "the queue overflows")
        fake.reads.set()
        wait_until(lambda: "close" in ear.heard, "the connection is given up")
        wait_until(ear.is_up, "connected anew")
        assert ear.heard == ["open", "close", "open"]
        assert ear.channel.send({"t": "y"})
        fake.expect("y")


def test_the_queue_is_bounded_in_frames_too(
    socket_path: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_QUEUE_FRAMES_MAX", 0)
    with FakeSidecar(socket_path):
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        assert not ear.channel.send({"t": "x"})


def test_questions_leave_room_for_everything_else(
    socket_path: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_QUEUE_BYTES_MAX", 8192)
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        with ear.channel._lock:  # the helper thread waits with what it would send
            ear.channel._outgoing_bytes += 5000
        assert not ear.channel.send({"t": "prefetch", "hashes": bytes(64)})
        assert ear.channel.send({"t": "release"})
        with ear.channel._lock:
            ear.channel._outgoing_bytes -= 5000
        assert ear.channel.send({"t": "prefetch", "hashes": bytes(64)})
        assert ear.is_up()
        fake.expect("prefetch")


def test_a_frame_that_is_too_large_is_dropped_and_never_raises(
    socket_path: str, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeSidecar(socket_path):
        ear = connect(socket_path)
        wait_until(ear.is_up, "the connection")
        with caplog.at_level(logging.ERROR, "tierkv.shim"):
            assert not ear.channel.send({"t": "prefetch", "hashes": bytes(limits.FRAME_BYTES_MAX)})
        assert ear.is_up()
    assert "a 'prefetch' frame was not sent" in caplog.text


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", limits.FRAME_BYTES_MAX + 1),
        struct.pack("<I", 1) + b"\xc1",
        encode({"t": "refuse", "message": "go away"}),
        encode({"t": "nonsense"}),
    ],
    ids=["too long", "not msgpack", "refuse", "a frame the listener cannot read"],
)
def test_nonsense_ends_the_connection_but_not_the_channel(
    socket_path: str, connect: Connect, data: bytes
) -> None:
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        fake.send_bytes(data)
        wait_until(lambda: "close" in ear.heard, "the connection is given up")
        wait_until(ear.is_up, "connected anew")


def test_a_refusal_is_said_once_for_each_cause_and_retried_less_and_less(
    socket_path: str,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 40.0)
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 60.0)  # no connection here lasts that long
    monkeypatch.setattr(limits, "RECONNECT_REFUSED_MAX_S", 600.0)
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    waits: list[float] = []
    monkeypatch.setattr(Channel, "_sleep", lambda _, seconds: waits.append(seconds))
    with FakeSidecar(socket_path) as fake, caplog.at_level(logging.INFO, "tierkv.shim"):
        ear = connect(socket_path)
        for number in range(6):  # as one whose arena does not fit: welcome first, then the refusal
            wait_until(lambda count=number + 1: len(fake.hellos) >= count, "a hello")  # type: ignore[misc]
            wait_until(ear.is_up, "the welcome")
            reason = "no arena" if number == 3 else f"half of the {number} bytes of free memory"
            closes = ear.heard.count("close")
            fake.send({"t": "refuse", "code": "ENGINE_REFUSED", "message": reason})
            wait_until(lambda count=closes: ear.heard.count("close") > count, "the end")  # type: ignore[misc]
        wait_until(lambda: len(waits) >= 6, "the pauses")
    said = [record.message for record in caplog.records if "refused us" in record.message]
    assert len(said) == 2
    assert "connected again" not in caplog.text
    assert waits[:6] == [40.0, 80.0, 160.0, 320.0, 600.0, 600.0]


def test_a_first_sidecar_that_may_be_starting_is_looked_for_often(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 1.0)
    monkeypatch.setattr(limits, "RECONNECT_YOUNG_S", 2.0)
    monkeypatch.setattr(limits, "RECONNECT_MAX_S", 1e6)
    ear = Ear(socket_path)
    waits: list[float] = []

    def sleep(_: Channel, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            monkeypatch.setattr(limits, "SIDECAR_START_S", 0.0)
        ear.channel._closing = len(waits) == 6

    monkeypatch.setattr(Channel, "_sleep", sleep)
    ear.channel.start()
    ear.channel._thread.join()
    assert waits == [1.0, 2.0, 2.0, 2.0, 2.0, 4.0]


def test_what_is_new_is_told_at_once_when_asked(
    socket_path: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PING_EVERY_S", 1e6)
    with FakeSidecar(socket_path) as sidecar:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        for number in (1, 2):
            ear.counters.add("news", number)
            ear.channel.report()
            assert sidecar.expect("counts", number)[-1]["counters"] == {"news": number}


def test_frames_sent_together_with_welcome_are_not_lost(
    socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeSidecar(socket_path) as fake:
        early: Frame = {"t": "restore", "arena": 1, "on": True}
        ear = Ear(socket_path)
        open_first = ear.on_open

        def send_at_once(welcome: Frame) -> None:
            open_first(welcome)
            fake.send(early)

        monkeypatch.setattr(ear, "on_open", send_at_once)
        ear.channel.start()
        wait_until(lambda: ear.frames, "the early frame")
        assert ear.frames == [early]
        ear.channel.close()


def test_the_listener_speaks_first(socket_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear(socket_path)
    seen = []

    def on_open(_: Frame) -> None:
        seen.append((ear.channel.is_up, ear.channel.send({"t": "register"})))

    monkeypatch.setattr(ear, "on_open", on_open)
    with FakeSidecar(socket_path) as fake:
        ear.channel.start()
        wait_until(ear.is_up, "the channel is up")
        fake.expect("register")
        ear.channel.close()
    # Were it up before, the engine's thread could send on a connection its owner knows nothing of.
    assert seen == [(False, True)]


def test_counters_travel_as_differences(socket_path: str, connect: Connect) -> None:
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        ear.counters.add("blocks_offered", 3)
        fake.expect("counts")
        ear.counters.add("blocks_offered", 2)
        ear.counters.add("dropped", 0)
        frames = fake.expect("counts", 2)
        assert [frame["counters"] for frame in frames] == [
            {"blocks_offered": 3},
            {"blocks_offered": 2},
        ]


def test_closing_sends_what_waits_and_ends_the_thread(socket_path: str, connect: Connect) -> None:
    with FakeSidecar(socket_path) as fake:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        ear.channel.send({"t": "release", "req": "r", "plan": 1})
        started = time.monotonic()
        ear.channel.close()
        assert time.monotonic() - started < 2.0
        fake.expect("release")
        assert not ear.channel.is_up
        assert not ear.channel.send({"t": "x"})
        ear.channel.close()  # twice is once


def test_many_frames_wake_the_helper_thread_seldom(
    connect: Connect, socket_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeSidecar(socket_path) as sidecar:
        ear = connect(socket_path)
        wait_until(ear.is_up, "the channel is up")
        wake, wakes = ear.channel._wake, list[int]()
        monkeypatch.setattr(ear.channel, "_wake", lambda: wakes.append(1))
        for number in range(50):
            assert ear.channel.send({"t": "asked", "req": "r", "plan": number})
        assert 1 <= len(wakes) < 10  # its heartbeat may empty the queue in between
        wake()
        asked = sidecar.expect("asked", 50)
        assert [frame["plan"] for frame in asked] == list(range(50))
