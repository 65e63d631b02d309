"""Vault, sidecar and fault proxy as real processes: started by their command line, stopped, killed, frozen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierkv.connectors.vllm import limits
from tierkv.connectors.vllm.link.frames import Frame, FrameDecoder, encode

from harness.reaper import MARK, marked

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
READY_S = 90.0
STOP_S = 60.0
WAIT_S = 90.0

Json = dict[str, Any]


def wait_until(holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Polls until `holds()` is true and returns its value; AssertionError naming `what` otherwise."""
    deadline = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)
    return value


class Process:
    """One child; its output goes to `log`."""

    def __init__(self, name: str, argv: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._child: subprocess.Popen[bytes] | None = None

    def becomes(self, program: Path) -> None:
        """Runs this program with Node from its next start on."""
        self._argv[1] = str(program)

    @property
    def child(self) -> subprocess.Popen[bytes]:
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self, timeout_s: float = READY_S) -> Json:
        """Starts it and returns its ready line, the first line of its standard output."""
        assert not self.is_running, f"{self.name} runs already"
        out = self.log.with_suffix(".out")
        with self.log.open("ab") as log, out.open("wb") as stdout:
            self._child = subprocess.Popen(
                self._argv,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=log,
            )
        lines = wait_until(lambda: self._lines(out, 1), f"{self.name} is ready", timeout_s)
        ready: Json = json.loads(lines[0])
        assert "error" not in ready, f"{self.name}: {ready['error']['message']}"
        return ready

    def ask(self, line: str) -> Json:
        """Writes a line to its standard input and returns its answer."""
        out = self.log.with_suffix(".out")
        before = len(self._lines(out, 0))
        assert self.child.stdin is not None
        self.child.stdin.write(f"{line}\n".encode())
        self.child.stdin.flush()
        lines = wait_until(lambda: self._lines(out, before + 1), f"{self.name} answers {line!r}")
        answer: Json = json.loads(lines[-1])
        return answer

    def set_faults(self, **faults: Any) -> None:
        """Replaces all faults of a fault proxy."""
        self.ask(json.dumps(faults))

    def _lines(self, out: Path, at_least: int) -> list[str]:
        lines = [line for line in out.read_text().split("\n")[:-1] if line]
        if len(lines) >= at_least:
            return lines
        if not self.is_running:
            raise AssertionError(f"{self.name} ended: {self.log.read_text()[-2000:]}")
        return []

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def freeze(self) -> None:
        """Hangs it: alive, sockets open, no answer. Every thread has stopped when this returns."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: set(self._states()) <= {"T"}, f"{self.name} hangs")

    def _states(self) -> list[str]:
        """Returns the kernel's state of each thread (proc(5), the third field of `stat`)."""
        tasks = Path(f"/proc/{self.child.pid}/task").glob("*/stat")
        return [task.read_text().rpartition(")")[2].split()[0] for task in tasks]

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        self.signal(signal.SIGKILL)
        self.child.wait(STOP_S)

    def stop(self) -> int:
        """Ends it as an operator does; returns the exit code."""
        if not self.is_running:
            return self.child.returncode
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        return self.child.wait(STOP_S)

    def end(self) -> None:
        """Ends it in any state, for cleanup."""
        if self.is_running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
                return
            self.kill()


def otlp_line(endpoint: str | None) -> str:
    return "" if endpoint is None else f'otlp_endpoint = "{endpoint}"\n'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """One vault for KV, optionally behind a fault proxy, one for states where asked, and one sidecar.

    Their configuration lies in `folder`. With `beside`, the sidecar uses that cluster's vaults and has none. With
    `region`, it uses that memory for both, and there is no vault. `more_vaults` are one pool with the first.
    """

    def __init__(
        self,
        folder: Path,
        *,
        vault_bytes: str = "512MiB",
        arena_bytes: str = "256MiB",
        wait_ms: int = 20_000,
        stall_ms: int = 10_000,
        when: str = "always",
        with_proxy: bool = False,
        int8: bool = False,
        kv: str | None = None,
        states: str = "raw",
        verify: str = "off",
        on_disk: bool = False,
        beside: Cluster | None = None,
        more_vaults: int = 0,
        with_ssm: bool = False,
        region: Path | None = None,
        otlp: str | None = None,
    ) -> None:
        self.folder = folder
        self.socket = str(folder / "run" / "s.sock")
        vault = f"127.0.0.1:{free_port()}" if beside is None else beside.vault_address
        self.vault_address: str = vault
        front = f"127.0.0.1:{free_port()}" if with_proxy else vault
        if region is not None:
            front = f"shm:{region}"
        self.has_vault = region is None
        more = [f"127.0.0.1:{free_port()}" for _ in range(more_vaults)]
        self.pool: list[str] = [front, *more] if beside is None else [front, *beside.pool[1:]]
        for at, address in enumerate(more):
            (folder / f"more-{at}.toml").write_text(
                f'[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\n'
                f'listen = "{address}"\nmax_bytes = "{vault_bytes}"\n'
            )
        (folder / "vault.toml").write_text(
            f'[cluster]\nrole = "kv_cold"\n[vault]\ninsecure_lan = true\n'
            f'listen = "{vault}"\nmax_bytes = "{vault_bytes}"\n'
            + (f'data_dir = "{folder / "data"}"\ndisk_bytes = "1GiB"\n' if on_disk else "")
            + otlp_line(otlp)
        )
        ssm_address = f"127.0.0.1:{free_port()}"
        (folder / "ssm.toml").write_text(
            f'[cluster]\nrole = "ssm_cold"\n[vault]\ninsecure_lan = true\n'
            f'listen = "{ssm_address}"\nmax_bytes = "{vault_bytes}"\n'
        )
        codec = kv or ("int8" if int8 else "raw")
        states_at = ssm_address if region is None else front
        ssm = f'ssm_cold = "{states_at}"\n' if with_ssm else ""
        self.config_path = folder / "tierkv.toml"
        self.config_path.write_text(
            f'[cluster]\nrole = "inference"\nkv_cold = {json.dumps(self.pool)}\n{ssm}'
            f'[turbo_quant]\nenabled = {str(codec.startswith("int8")).lower()}\nstates = "{states}"\n'
            f'[codec]\nkv = "{codec}"\n'
            f'[sidecar]\nsocket = "{self.socket}"\narena_bytes = "{arena_bytes}"\nautostart = false\n'
            f"lanes = 4\n{otlp_line(otlp)}"
            + ("" if region is None else f'[vault]\nmax_bytes = "{vault_bytes}"\n')
            + f'[restore]\nwait_ms = {wait_ms}\nstall_ms = {stall_ms}\nwhen = "{when}"\n'
            # Checked, because the number of restored tokens is counted, too.
            f'verify = "{verify}"\n[receipts]\ndir = "{folder / "receipts"}"\n'
        )
        self.vault: Process = (
            self._tierkv("vault", "vault.toml") if beside is None else beside.vault
        )
        self.more_vaults = [self._tierkv("vault", f"more-{at}.toml") for at in range(more_vaults)]
        self.ssm = self._tierkv("vault", "ssm.toml") if with_ssm and self.has_vault else None
        self.sidecar = self._tierkv("sidecar", "tierkv.toml")
        proxy = ["node", "test/support/fault-proxy.js", "--target", vault, "--listen", front]
        self.proxy = Process("proxy", proxy, folder / "proxy.log") if with_proxy else None

    def _tierkv(self, command: str, config: str) -> Process:
        argv = ["node", "bin/tierkv.js", command, "--json", "--config", str(self.folder / config)]
        return Process(command, argv, self.folder / f"{config.removesuffix('.toml')}.log")

    def start(self) -> None:
        if self.has_vault and not self.vault.is_running:
            self.vault.start()
        for vault in self.more_vaults:
            vault.start()
        if self.ssm is not None:
            self.ssm.start()
        if self.proxy is not None:
            self.proxy.start()
        self.sidecar.start()

    def end(self) -> None:
        for process in (self.sidecar, self.proxy, self.ssm, *self.more_vaults, self.vault):
            if process is not None and process.is_running:
                process.end()

    @property
    def transfer_config(self) -> Json:
        """Returns the value of `--kv-transfer-config`."""
        return {
            "kv_connector": "TierKVConnector",
            "kv_connector_module_path": "tierkv.connectors.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"config_path": str(self.config_path)},
        }

    def status(self) -> Json:
        """Returns the sidecar's status over its socket."""
        return sidecar_status(self.socket)

    def counters(self) -> Json:
        counters: Json = self.status()["counters"]
        return counters

    def command(self, *arguments: str) -> tuple[int, Json]:
        """Runs `tierkv ... --json`; returns exit code and output."""
        argv = ["node", "bin/tierkv.js", *arguments, "--json", "--config", str(self.config_path)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, timeout=STOP_S, check=False)
        return done.returncode, json.loads(done.stdout)

    def vault_status(self, name: str = "kv_cold") -> Json:
        """Returns a vault's line of `tierkv status`."""
        _, status = self.command("status")
        (vault,) = (target for target in status["targets"] if target["target"] == name)
        return dict(vault)

    def wait_restoring(self, engines: int = 1) -> None:
        """Waits until `engines` engines are connected, named and may restore."""

        def may_restore() -> list[bool]:
            found = self.status()["engines"]
            return [one["isRestoring"] and one["naming"]["percent"] == 100 for one in found]

        wait_until(lambda: sum(may_restore()) == engines, f"{engines} engines may restore")

    def saved(self) -> int:
        """Returns the blocks that the vault has confirmed to the sidecar."""
        counters = self.counters()
        return int(counters["blocks_saved"] + counters["saves_present"])

    def wait_saved(self, blocks: int) -> None:
        """Waits until `saved` reaches this number."""
        try:
            wait_until(lambda: self.saved() >= blocks, f"{blocks} blocks are in the vault")
        except AssertionError as error:
            raise AssertionError(f"{error}; {json.dumps(self.status())}") from None

    def wait_count(self, name: str, least: int) -> None:
        """Waits until a counter of the sidecar, or of a shim (`shim_...`), reaches this number."""
        wait_until(lambda: self.counters().get(name, 0) >= least, f"{name} is {least}")

    def wait_idle(self) -> Json:
        """Waits until the sidecar has no open plan, fetch or save, as engines have said; returns its status."""

        def idle() -> Json | None:
            status = self.status()
            busy = status["saves"]["queuedBlocks"] or any(
                engine["plans"] or engine["fetches"] or engine["isSaving"]
                for engine in status["engines"]
            )
            return None if busy else status

        found: Json = wait_until(idle, "the sidecar is idle")
        return found


def sidecar_status(path: str, timeout_s: float = 5.0) -> Json:
    """Asks a sidecar as `tierkv status` does. Raises OSError when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout_s)
        link.connect(path)
        link.sendall(encode({"t": "hello", "protocol": limits.LOCAL_PROTOCOL, "role": "status"}))
        link.sendall(encode({"t": "status"}))
        decoder = FrameDecoder()
        while data := link.recv(1 << 16):
            for frame in decoder.feed(data):
                if frame["t"] == "status_reply":
                    return _status_of(frame)
    raise ConnectionError(f"{path}: the sidecar ended the connection")


def _status_of(frame: Frame) -> Json:
    status: Json = frame["status"]
    return status


def leftovers(folder: Path, but: set[int]) -> list[str]:
    """Returns our leftovers: marked processes, shared-memory files, sockets."""
    found = [f"process {pid}: {line}" for pid, line in marked(os.environ[MARK]) if pid not in but]
    # Filtered by process id, because another run may go on beside this one.
    found += [str(path) for path in Path("/dev/shm").glob(f"*tierkv*-{os.getpid()}*")]
    found += [str(path) for path in folder.rglob("*") if path.is_socket()]
    return found
