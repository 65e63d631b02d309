"""Owns a link with latency between two network namespaces: packets wait in this process, as not every kernel has netem.

`delaying_link.py NETNS_A NETNS_B ONE_WAY_US [NAME]` makes an interface in each (`slow0`, or of that name), prints a
line, and forwards until its end.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

CLONE_NEWNET = 0x4000_0000
TUNSETIFF = 0x4004_54CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
PACKET_BYTES_MAX = 65_536
# What the link holds at most in each direction; further packets are lost, as on a real one.
HELD_BYTES_MAX = 64 << 20
PACKETS_PER_TURN = 32


def enter(path: str) -> None:
    """Moves this process to the network namespace at `path`."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"entering {path}")
    os.close(descriptor)


def interface(netns: str, name: str) -> int:
    """Makes the interface in a named namespace and returns its descriptor."""
    enter(f"/var/run/netns/{netns}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, request)
    return descriptor


class Direction:
    """Packets from one interface on their way to the other."""

    def __init__(self, source: int, target: int, delay_s: float) -> None:
        self.source, self.target, self.delay_s = source, target, delay_s
        self.held: deque[tuple[float, bytes]] = deque()
        self.held_bytes = 0

    def take(self) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                packet = os.read(self.source, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if self.held_bytes + len(packet) <= HELD_BYTES_MAX:
                self.held.append((time.monotonic() + self.delay_s, packet))
                self.held_bytes += len(packet)

    def give(self, now: float) -> None:
        while self.held and self.held[0][0] <= now:
            _, packet = self.held.popleft()
            self.held_bytes -= len(packet)
            try:
                os.write(self.target, packet)
            except (BlockingIOError, OSError):
                # The interface is full or down: the packet is lost.
                continue


def main(first: str, second: str, one_way_us: str, name: str = "slow0") -> None:
    ends = [interface(first, name), interface(second, name)]
    delay_s = int(one_way_us) / 1e6
    directions = [Direction(*ends, delay_s), Direction(*reversed(ends), delay_s)]
    print("ready", flush=True)
    while True:
        due = [direction.held[0][0] for direction in directions if direction.held]
        wait_s = max(0.0, min(due) - time.monotonic()) if due else 1.0
        readable, _, _ = select.select(ends, [], [], wait_s)
        for direction in directions:
            if direction.source in readable:
                direction.take()
            direction.give(time.monotonic())


if __name__ == "__main__":
    main(*sys.argv[1:])
