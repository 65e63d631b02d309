"""Receives bytes and the descriptors that travel with them (SCM_RIGHTS): how the sidecar hands over shared memory."""

import array
import os
import socket
from collections import deque
from typing import Final

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link import systems
from tierkv.connectors.vllm.link.frames import FrameError

_INT_BYTES: Final = array.array("i").itemsize
_ROOM: Final = socket.CMSG_SPACE(limits.DESCRIPTORS_MAX * _INT_BYTES)


class Descriptors:
    """Descriptors of one connection, in frame order: each arrives with the first byte of its frame."""

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    def receive(self, sock: socket.socket, most: int) -> bytes:
        """Read up to `most` bytes, as `recv`; raises FrameError when descriptors come that no frame takes."""
        data, ancillary = systems.receive(sock, most, _ROOM)
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(body[: len(body) - len(body) % _INT_BYTES])
                for number in numbers:
                    systems.keep_from_children(number)
                self._waiting.extend(numbers)
        if len(self._waiting) > limits.DESCRIPTORS_MAX:
            raise FrameError(f"sent more than {limits.DESCRIPTORS_MAX} descriptors without a frame")
        return data

    def take(self) -> int | None:
        """Give the next descriptor, which the caller closes; None when none came."""
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        while self._waiting:
            os.close(self._waiting.popleft())
