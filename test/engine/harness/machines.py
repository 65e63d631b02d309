"""Machines of a test: network namespaces, links with latency between them, and what runs in them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from harness.processes import ROOT, Process, wait_until
from harness.valkeys import Side

if TYPE_CHECKING:
    from pathlib import Path

#: From the range reserved for benchmarks (RFC 2544): of the machine of the store, and of both links.
STORE: Final = "198.18.98.1"
LINKS: Final = {"a": "198.18.96", "b": "198.18.97"}
PORT: Final = 50_051
VALKEY_PORT: Final = 6_379
#: As large as a link without segmentation carries; each packet costs its relay a turn.
MTU: Final = "65000"


def can_make() -> bool:
    """Whether this machine lets us make named network namespaces and links of a process."""
    name = f"tierkv-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode != 0:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return os.access("/dev/net/tun", os.W_OK)


class Machines:
    """Two machines of engines, `a` and `b`, each with a link to a third, which has the store or the vault."""

    def __init__(self, folder: Path, one_way_us: int) -> None:
        self._folder = folder
        self._spaces = {name: f"tierkv-{os.getpid()}-{name}" for name in ("store", *LINKS)}
        self._links: list[subprocess.Popen[bytes]] = []
        self._running: list[Process | Side] = []
        self._valkey: subprocess.Popen[bytes] | None = None
        self._valkey_socket = folder / "valkey.sock"
        try:
            self._make(one_way_us)
        except BaseException:
            self.close()
            raise

    def _make(self, one_way_us: int) -> None:
        for space in self._spaces.values():
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        store = self._spaces["store"]
        _run("ip", "-n", store, "addr", "add", f"{STORE}/32", "dev", "lo")
        for name, net in LINKS.items():
            near, link = self._spaces[name], f"slow-{name}"
            relay = [sys.executable, "bench/lib/delaying_link.py", near, store, str(one_way_us)]
            started = subprocess.Popen([*relay, link], cwd=ROOT, stdout=subprocess.PIPE)
            self._links.append(started)
            assert started.stdout is not None
            assert started.stdout.readline() == b"ready\n"
            for space, own, peer in ((near, 2, 1), (store, 1, 2)):
                there = ("dev", link)
                _run(
                    "ip",
                    "-n",
                    space,
                    "addr",
                    "add",
                    f"{net}.{own}",
                    "peer",
                    f"{net}.{peer}",
                    *there,
                )
                _run("ip", "-n", space, "link", "set", link, "mtu", MTU, "up")
            _run("ip", "-n", near, "route", "add", f"{STORE}/32", "dev", link)

    def path(self, name: str) -> str:
        """Return the path by which a process enters the network of a machine."""
        return f"/var/run/netns/{self._spaces[name]}"

    def _under(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self._spaces[name]]

    def start_vault(self) -> str:
        """Start a vault on the store's machine; return its address."""
        config = self._folder / "vault.toml"
        config.write_text(
            f'[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\nlisten = "{STORE}:{PORT}"\n'
            f'max_bytes = "1GiB"\nstate_dir = "{self._folder / "state"}"\n'
        )
        argv = [*self._under("store"), "node", "bin/tierkv.js", "vault", "--json", "--config"]
        vault = Process("vault", [*argv, str(config)], self._folder / "vault.log")
        self._running.append(vault)
        vault.start()
        return f"{STORE}:{PORT}"

    def start_valkey(self, program: str) -> str:
        """Start a Valkey server on the store's machine; return its address."""
        listen = ["--bind", STORE, "--port", str(VALKEY_PORT)]
        listen += ["--unixsocket", str(self._valkey_socket)]
        memory = ["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lfu", "--save", ""]
        argv = [*self._under("store"), program, *listen, *memory, "--protected-mode", "no"]
        log = (self._folder / "valkey.log").open("wb")
        self._valkey = subprocess.Popen([*argv, "--dir", str(self._folder)], stdout=log)
        wait_until(self._valkey_socket.exists, "Valkey listens")
        return f"valkey://{STORE}:{VALKEY_PORT}"

    def ask_valkey(self, command: str) -> str:
        """Return a server's whole answer to one inline command, a character for each byte, as keys are no text."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self._valkey_socket))
            link.sendall(f"{command}\r\nQUIT\r\n".encode())
            return b"".join(iter(lambda: link.recv(65_536), b"")).decode("latin-1")

    def start_side(self, name: str, address: str) -> Side:
        """Start the sidecar of a machine, `a` or `b`, before the store at this address."""
        folder = self._folder / f"{name}{len(self._running)}"
        folder.mkdir()
        side = Side(folder, address, self._under(name))
        self._running.append(side)
        side.start()
        return side

    def close(self) -> None:
        """End all that runs there, and remove namespaces and links."""
        while self._running:
            self._running.pop().end()
        for process in (self._valkey, *self._links):
            if process is not None:
                process.kill()
                process.wait()
        self._valkey_socket.unlink(missing_ok=True)
        for space in self._spaces.values():
            # One that was not made cannot be removed.
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr.decode()}"
