"""Owns the connection to the sidecar: one helper thread, so that the engine's thread never touches a socket."""

import logging
import os
import random
import re
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link import failpoint, processors
from tierkv.connectors.vllm.link.descriptors import Descriptors
from tierkv.connectors.vllm.link.dial import StrangerError, dial
from tierkv.connectors.vllm.link.frames import Frame, FrameDecoder, FrameError, RefusedError, encode

log = logging.getLogger("tierkv.shim")


class Listener(Protocol):
    """Callbacks of a channel's owner, always called from the helper thread."""

    def on_open(self, welcome: Frame, /) -> None:
        """Called with the sidecar's `welcome`; frames may be sent from now on."""

    def on_frame(self, frame: Frame, /) -> None:
        """Take a frame after `welcome`; `fd` of an `arena` is open until this returns, None when none came."""

    def on_close(self) -> None:
        """Called at the connection's end; its leases and plans are void."""


class Channel:
    """Connects, says hello, reconnects with jittered back-off, for ever; `send` only appends to a bounded queue.

    `is_up` turns False at the socket's end or after `SILENCE_MAX_S` without a reply that the sidecar owes.
    """

    def __init__(
        self,
        path: str,
        hello: Frame,
        listener: Listener,
        changes: Callable[[], dict[str, int]],
        unreachable: Callable[[], None] = lambda: None,
        *,
        reports: Callable[[], Frame] = dict,
        strangers: Callable[[], object] = lambda: None,
    ) -> None:
        """`unreachable` is called, from the helper thread, whenever no process listens at `path`.

        `strangers` is called when another user's process listens there; nothing was sent.

        `changes` gives the new counters for a `counts` frame, `reports` its other new fields.
        """
        self._path = path
        self._unreachable = unreachable
        self._strangers = strangers
        self._hello = hello
        self._listener = listener
        self._changes = changes
        self._reports = reports
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._lock = threading.Lock()
        self._woken, self._waking = socket.socketpair()
        self._woken.setblocking(False)
        self._waking.setblocking(False)
        self._closing = False
        self._open = False
        self._greeted = False
        self._overflowed = False
        self._owed_since: float | None = None
        self._last_ping = 0.0
        self._is_due = True
        self._complained = ""
        self._was_welcome = self._was_ever_welcome = False
        self._begun_s = 0.0
        #: Logged refusals with numbers masked, because amounts such as free memory differ each time.
        self._refusals: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="tierkv-channel", daemon=True)

    def start(self) -> None:
        """Starts the helper thread; returns at once."""
        self._thread.start()

    @property
    def is_up(self) -> bool:
        """True from the end of `on_open`, unless a reply of the sidecar is overdue."""
        owed = self._owed_since
        return self._greeted and (owed is None or time.monotonic() - owed < limits.SILENCE_MAX_S)

    def send(self, frame: Frame) -> bool:
        """Queues a frame without blocking; False when there is no connection, or it is too large: it is dropped.

        Look-ups may fill half of the queue, so a burst of long prompts costs misses, not the connection.
        Never raises: the engine's thread calls this, and an exception there ends the server.
        """
        try:
            data = encode(frame)
        except FrameError as error:
            log.error("tierKV: a %r frame was not sent: %s", frame["t"], error)  # noqa: TRY400
            return False
        with self._lock:
            if not self._open or self._overflowed:
                return False
            is_awake = bool(self._outgoing)  # the helper thread sleeps only with an empty queue
            is_question = frame["t"] == "prefetch"
            if is_question and self._outgoing_bytes > limits.SEND_QUEUE_BYTES_MAX // 2:
                return False
            full = len(self._outgoing) >= limits.SEND_QUEUE_FRAMES_MAX
            if full or self._outgoing_bytes + len(data) > limits.SEND_QUEUE_BYTES_MAX:
                self._overflowed = (
                    True  # the sidecar does not read: drop the connection, it reclaims its leases
                )
            else:
                self._outgoing.append(data)
                self._outgoing_bytes += len(data)
        if not is_awake or self._overflowed:
            self._wake()  # releases the GIL, so only once for a burst
        return not self._overflowed

    def report(self) -> None:
        """Report what is new now, not with the next ping. From any thread."""
        self._is_due = True
        self._wake()

    def suspect(self) -> None:
        """Treats the sidecar as hung until its next frame, because a reply is overdue."""
        self._owed_since = time.monotonic() - limits.SILENCE_MAX_S

    def retire(self) -> None:
        """Sends the last counters and ends the connection for good, without waiting."""
        self._send_last_counters()
        self._closing = True
        self._wake()

    def _send_last_counters(self) -> None:
        counters = self._changes()
        if counters:
            self.send({"t": "counts", "counters": counters})

    def close(self) -> None:
        """Sends the last counters, flushes the queue if the socket takes it at once, and ends the thread."""
        if self._closing:
            return
        self._send_last_counters()
        self._closing = True
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=1.0)

    def _wake(self) -> None:
        try:
            self._waking.send(b"\0")
        except OSError:
            return  # full of wake-ups, or closed

    def _run(self) -> None:
        processors.leave_bound_ones()
        self._begun_s = time.monotonic()
        wait_s = limits.RECONNECT_FIRST_S
        while not self._closing:
            connected_at = time.monotonic()
            is_starting = not self._was_ever_welcome and self._is_young(connected_at)
            most_s = limits.RECONNECT_YOUNG_S if is_starting else limits.RECONNECT_MAX_S
            try:
                self._serve_one_connection()
            except RefusedError as error:
                self._complain_of_refusal(str(error))
                most_s = limits.RECONNECT_REFUSED_MAX_S
            except (FileNotFoundError, ConnectionRefusedError) as error:
                self._note_absence(error)
            except (OSError, FrameError) as error:
                self._complain(str(error))
            except Exception as error:  # noqa: BLE001 - a frame we cannot use must not end this thread
                self._complain(f"sent a frame this shim cannot use ({error!r})")
            if time.monotonic() - connected_at > limits.RECONNECT_MAX_S:
                wait_s = limits.RECONNECT_FIRST_S
            self._sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            wait_s = min(wait_s * 2, most_s)
        self._woken.close()
        self._waking.close()

    def _is_young(self, now: float) -> bool:
        """Tell whether the first sidecar may still be starting."""
        return now - self._begun_s < limits.SIDECAR_START_S

    def _note_absence(self, error: OSError) -> None:
        """Complain of an absent sidecar, but not while the first one may still be starting."""
        if self._was_ever_welcome or not self._is_young(time.monotonic()):
            is_gone = isinstance(error, FileNotFoundError)
            self._complain("there is no socket" if is_gone else "nobody listens on its socket")

    def _complain(self, reason: str) -> None:
        if reason != self._complained:
            self._complained = reason
            log.warning(
                "tierKV: sidecar at %s: %s; the engine runs on without it", self._path, reason
            )

    def _complain_of_refusal(self, reason: str) -> None:
        """Logs each cause once; a welcome in between does not mean that it is gone."""
        if not self._was_welcome:
            self._complained = reason  # so that its next welcome is logged
        cause = re.sub(r"\d+", "#", reason)
        if cause in self._refusals or len(self._refusals) >= limits.REFUSALS_SAID_MAX:
            return
        self._refusals.add(cause)
        log.warning(
            "tierKV: sidecar at %s: %s; the engine runs on without it (logged once)",
            self._path,
            reason,
        )

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    def _serve_one_connection(self) -> None:
        self._was_welcome = False
        try:
            connected = dial(self._path, limits.HELLO_TIMEOUT_S)
        except (ConnectionRefusedError, FileNotFoundError):
            self._unreachable()
            raise
        except StrangerError:
            self._strangers()
            raise
        with connected as sock, closing(Descriptors()) as descriptors:
            sock.sendall(encode(self._hello))
            decoder = FrameDecoder()
            welcome, *early = self._await_welcome(sock, decoder, descriptors)
            sock.setblocking(False)
            try:
                self._accept(welcome)
                for frame in early:
                    self._deliver(frame, descriptors)
                self._pump(sock, decoder, descriptors)
            finally:
                self._forget()
                self._listener.on_close()

    def _await_welcome(
        self, sock: socket.socket, decoder: FrameDecoder, descriptors: Descriptors
    ) -> list[Frame]:
        """Gives the welcome and the frames that came with it."""
        frames: list[Frame] = []
        while not frames:
            data = descriptors.receive(sock, 65536)
            if not data:
                raise FrameError("closed the connection before its welcome")
            frames = decoder.feed(data)
        welcome = frames[0]
        if welcome["t"] == "refuse":
            raise RefusedError(f"refused us: {welcome.get('message')}")
        if welcome["t"] != "welcome":
            raise FrameError(f"answered hello with {welcome['t']!r}")
        if welcome.get("protocol") != limits.LOCAL_PROTOCOL:
            raise FrameError(
                f"speaks local protocol {welcome.get('protocol')}, this shim {limits.LOCAL_PROTOCOL}; "
                "install the same tierKV release on both sides"
            )
        return frames

    def _accept(self, welcome: Frame) -> None:
        with self._lock:
            self._outgoing.clear()
            self._outgoing_bytes = 0
            self._overflowed = False
            self._owed_since = None
            self._open = True
        self._was_welcome = True
        if not self._was_ever_welcome:
            # Once an engine: each rank has a connection of its own.
            level = logging.DEBUG if self._hello.get("role") == "worker" else logging.INFO
            log.log(level, "tierKV: sidecar at %s: connected", self._path)
        elif self._complained:
            log.info("tierKV: sidecar at %s: connected again", self._path)
        self._was_ever_welcome = True
        self._complained = ""
        self._listener.on_open(welcome)
        self._greeted = True

    def _forget(self) -> None:
        with self._lock:
            self._open = self._greeted = False
            self._outgoing.clear()
            self._outgoing_bytes = 0

    def _deliver(self, frame: Frame, descriptors: Descriptors) -> None:
        if frame["t"] != "arena":
            self._listener.on_frame(frame)
            return
        fd = descriptors.take()
        try:
            self._listener.on_frame({**frame, "fd": fd})
        finally:
            if fd is not None:
                os.close(fd)

    def _pump(self, sock: socket.socket, decoder: FrameDecoder, descriptors: Descriptors) -> None:
        unsent = memoryview(b"")
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(sock, selectors.EVENT_READ)
            while not self._closing:
                interest = selectors.EVENT_READ | (
                    selectors.EVENT_WRITE if unsent or self._outgoing else 0
                )
                selector.modify(sock, interest)
                for key, events in selector.select(timeout=limits.PING_EVERY_S):
                    if key.fileobj is self._woken:
                        self._woken.recv(1 << 12)
                    elif events & selectors.EVENT_READ and not self._read(
                        sock, decoder, descriptors
                    ):
                        return
                if self._overflowed:
                    raise FrameError("does not read what we send")
                self._heartbeat()
                unsent = self._write(sock, unsent)
            self._write(sock, unsent)

    def _read(self, sock: socket.socket, decoder: FrameDecoder, descriptors: Descriptors) -> bool:
        try:
            data = descriptors.receive(sock, 1 << 18)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._owed_since = None
        for frame in decoder.feed(data):
            if frame["t"] == "refuse":
                raise RefusedError(f"refused us: {frame.get('message')}")
            if failpoint.fails("shim.frame.read"):
                raise FrameError("is not heard: a failpoint")
            if frame["t"] != "pong":
                self._deliver(frame, descriptors)
        return True

    def _heartbeat(self) -> None:
        now = time.monotonic()
        if not self._is_due and now - self._last_ping < limits.PING_EVERY_S:
            return
        self._last_ping, self._is_due = now, False
        if self._owed_since is None:
            self._owed_since = now
        counters, reports = self._changes(), self._reports()
        if counters or reports:
            self.send({"t": "counts", "counters": counters, **reports})
        self.send({"t": "ping", "n": int(now * 1000)})

    def _write(self, sock: socket.socket, unsent: memoryview) -> memoryview:
        while True:
            if not unsent:
                with self._lock:
                    if not self._outgoing:
                        return memoryview(b"")
                    data = self._outgoing.popleft()
                    self._outgoing_bytes -= len(data)
                unsent = memoryview(data)
            try:
                unsent = unsent[sock.send(unsent) :]
            except BlockingIOError:
                return unsent
