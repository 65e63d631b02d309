"""Ceiling: the least a store can do over TCP.

A dict of blocks behind a socket. One request names all keys; the server answers with one
gathering `sendmsg` per IOV_MAX blocks, the client scatters with `recvmsg_into` straight into
the arena. The interpreter is idle meanwhile: the time is spent in the kernel's two copies.
Socket buffers are fixed at 128 KiB. README.md says what the kernel's own do instead: on one lane
a little less, on two a little more.
"""

import os
import socket
import struct
import sys
import threading

from .base import HOST, Lanes, Rival, Server, Setup, free_port

HEADER = struct.Struct("<cII")  # operation, bytes of the key list, bytes of one block
IOV_MAX = os.sysconf("SC_IOV_MAX")
SOCKET_BUFFER_BYTES = 128 << 10


class Tcp(Rival):
    def start(self, setup: Setup) -> None:
        port = free_port()
        self.server = Server(sys.executable, "-m", __name__, str(port), port=port)
        self.lanes = Lanes([new_socket() for _ in range(setup.lanes)])
        for lane in self.lanes.clients:
            lane.connect((HOST, port))

    def put(self, keys, blocks):
        self.lanes.run(self._put, keys, blocks)

    def get_into(self, keys, blocks):
        self.lanes.run(self._get, keys, blocks)

    def exists(self, keys):
        lane = self.lanes.clients[0]
        request(lane, b"E", keys)
        return [flag == 1 for flag in receive(lane, len(keys))]

    def stop(self):
        for lane in self.lanes.clients:
            lane.close()
        self.lanes.close()
        self.server.stop()

    def server_pids(self):
        return [self.server.pid]

    @staticmethod
    def _put(lane, keys, blocks):
        request(lane, b"P", keys, len(blocks[0].view))
        send_all(lane, [block.view for block in blocks])
        receive(lane, 1)

    @staticmethod
    def _get(lane, keys, blocks):
        request(lane, b"G", keys)
        receive_into(lane, [block.view for block in blocks])


def new_socket() -> socket.socket:
    """A TCP socket with its options; what a listener accepts inherits them."""
    lane = socket.socket()
    lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lane.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    lane.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    return lane


def request(lane: socket.socket, operation: bytes, keys, block_bytes: int = 0) -> None:
    names = "\n".join(keys).encode()
    lane.sendall(HEADER.pack(operation, len(names), block_bytes) + names)


def receive(lane: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    receive_into(lane, [memoryview(data)])
    return data


def send_all(lane: socket.socket, views: list) -> None:
    transfer(views, lane.sendmsg)


def receive_into(lane: socket.socket, views: list) -> None:
    transfer(views, lambda part: lane.recvmsg_into(part, 0, socket.MSG_WAITALL)[0])


def transfer(views: list, move) -> None:
    """Moves all views through `move`, which may take any number of bytes at a time."""
    at = 0
    while at < len(views):
        moved = move(views[at : at + IOV_MAX])
        if moved == 0:
            raise ConnectionError("the peer closed the connection")
        while at < len(views) and moved >= len(views[at]):
            moved -= len(views[at])
            at += 1
        if moved:
            views = [views[at][moved:], *views[at + 1 :]]
            at = 0


def serve(lane: socket.socket, stored: dict[bytes, memoryview]) -> None:
    while head := lane.recv(HEADER.size, socket.MSG_WAITALL):
        operation, names_bytes, block_bytes = HEADER.unpack(head)
        names = bytes(receive(lane, names_bytes)).split(b"\n")
        if operation == b"P":
            views = [memoryview(bytearray(block_bytes)) for _ in names]
            receive_into(lane, views)
            stored.update(zip(names, views, strict=True))
            lane.sendall(b"\1")
        elif operation == b"G":
            send_all(lane, [stored[name] for name in names])
        else:
            lane.sendall(bytes(name in stored for name in names))


def main(port: int) -> None:
    stored: dict[bytes, memoryview] = {}
    listener = new_socket()
    listener.bind((HOST, port))
    listener.listen()
    while True:
        lane, _ = listener.accept()
        threading.Thread(target=serve, args=(lane, stored), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
