"""Who listens on the socket is checked before a byte is sent: folder, socket file and peer, each a stranger's."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.channel import Channel
from tierkv.connectors.vllm.link.counters import Counters
from tierkv.connectors.vllm.link.dial import StrangerError, dial
from tierkv.connectors.vllm.link.frames import Frame

from .support import another_system
from .support.sidecar import FakeSidecar, shared_memory, wait_until

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="making another user's files takes root")


class Silent:
    """A listener that is told nothing."""

    def on_open(self, welcome: Frame) -> None:
        raise AssertionError(welcome)

    def on_frame(self, frame: Frame) -> None:
        raise AssertionError(frame)

    def on_close(self) -> None:
        raise AssertionError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of this user's with mode 700."""
    folder = tmp_path / "tierkv-0"
    folder.mkdir(mode=0o700)
    return folder


def listen(path: Path, *, as_nobody: bool = False) -> socket.socket:
    """Bind as we are; who listens is another user where `as_nobody`."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    if as_nobody:
        os.seteuid(NOBODY)
    server.listen(4)
    os.seteuid(os.getuid())
    return server


def taken_over(place: Path) -> None:
    os.chown(place, NOBODY, NOBODY)


def opened(place: Path) -> None:
    place.chmod(0o777)


def linked(place: Path) -> None:
    place.rename(place.with_name("real"))
    place.symlink_to(place.with_name("real"))


def given_away(place: Path) -> None:
    os.chown(place / "s.sock", NOBODY, NOBODY)


def link_in_place(place: Path) -> None:
    (place / "s.sock").rename(place / "real.sock")
    (place / "s.sock").symlink_to(place / "real.sock")


def no_socket(place: Path) -> None:
    (place / "s.sock").unlink()
    (place / "s.sock").write_bytes(b"")


@as_root
@pytest.mark.parametrize(
    ("meddle", "complaint"),
    [
        (taken_over, "tierkv-0 belongs to user 65534, this engine runs as user 0; set "),
        (opened, "tierkv-0 has mode 777, so others may put a socket there; run `chmod 700 "),
        (linked, "tierkv-0 is a link; set "),
        (given_away, "s.sock belongs to user 65534, this engine runs as user 0; set "),
        (link_in_place, "s.sock is no socket; remove it"),
        (no_socket, "s.sock is no socket; remove it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_f39_a_place_of_another_user_is_not_connected_to(
    place: Path, meddle: Callable[[Path], None], complaint: str
) -> None:
    with listen(place / "s.sock") as server:
        with dial(str(place / "s.sock"), 5):
            server.accept()[0].close()
        meddle(place)
        with pytest.raises(StrangerError) as refused:
            dial(str(place / "s.sock"), 5)
        assert complaint in str(refused.value)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@as_root
@pytest.mark.skipif(another_system.VARIABLE in os.environ, reason="it does not tell who listens")
def test_f39_an_impostor_hears_nothing_and_the_engine_goes_on(
    place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECONNECT_FIRST_S", 0.02)
    counters = Counters()
    heard: list[bytes] = []
    started: list[None] = []
    with listen(place / "s.sock", as_nobody=True) as server:

        def eavesdrop() -> None:
            for _ in range(3):
                with server.accept()[0] as peer:
                    heard.append(peer.recv(1 << 16))

        impostor = threading.Thread(target=eavesdrop, daemon=True)
        impostor.start()
        channel = Channel(
            str(place / "s.sock"),
            {"t": "hello"},
            Silent(),
            dict,
            lambda: started.append(None),
            strangers=lambda: counters.add("sidecar_not_ours"),
        )
        channel.start()
        impostor.join(20)
        wait_until(lambda: counters.get("sidecar_not_ours") >= 3, "three refusals")
        assert not channel.is_up
        assert not channel.send({"t": "x"})
        channel.close()
    assert heard == [b"", b"", b""]
    assert started == [], "nobody else is started where a stranger listens"
    said = [text for text in caplog.messages if "user 65534 listens there" in text]
    assert len(said) == 1
    assert "the engine runs on without it" in said[0]


def test_a_folder_that_is_not_there_is_a_missing_sidecar(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dial(str(tmp_path / "none" / "s.sock"), 5)
    with pytest.raises(FileNotFoundError):
        dial(str(tmp_path / "s.sock"), 5)


@pytest.fixture
def descriptors() -> Iterator[Callable[[], int]]:
    """Counts this process's open descriptors."""
    yield lambda: len(os.listdir("/proc/self/fd"))


def test_descriptors_that_no_frame_takes_end_the_connection_and_are_closed(
    socket_path: str, descriptors: Callable[[], int]
) -> None:
    class Ear(Silent):
        def on_open(self, welcome: Frame) -> None:
            assert welcome["t"] == "welcome"

        def on_close(self) -> None:
            closed.set()

    closed = threading.Event()
    with FakeSidecar(socket_path) as fake:
        before = descriptors()
        channel = Channel(socket_path, {"t": "hello"}, Ear(), dict)
        channel.start()
        wait_until(lambda: channel.is_up, "the channel is up")
        spare = shared_memory(1)
        unfinished = (1000).to_bytes(4, "little") + bytes(1000 - 1)
        for at in range(limits.DESCRIPTORS_MAX + 1):
            # The channel may end the connection before the last piece.
            with contextlib.suppress(OSError):
                fake.send_bytes(unfinished[at : at + 1], spare)
        os.close(spare)
        assert closed.wait(20)
        channel.close()
        fake.drop_connections()
        wait_until(lambda: descriptors() <= before, "every descriptor is closed")
