// Owns the proof that an installation as it comes listens to nobody outside its machine, and to no other user in it.
import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { checkConfig } from "../../src/config/check.ts";
import { isLocal } from "../../src/hosts.ts";
import { Program } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest } from "../support/vaults.ts";

const LISTENING_TCP = "0A";
const LISTENING_UNIX = "00010000";

/** The process and those it started. */
function family(pid: number): number[] {
  const children = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
    readFileSync(`/proc/${pid}/task/${task}/children`, "utf8").split(" ").filter(Boolean),
  );
  return [pid, ...children.flatMap((child) => family(Number(child)))];
}

function socketsOf(pid: number): Set<string> {
  const links = readdirSync(`/proc/${pid}/fd`).map((fd) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${fd}`);
    } catch {
      return "";
    }
  });
  return new Set(links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? []));
}

interface Listeners {
  /** Addresses as the kernel shows them, in hexadecimal. */
  tcp: string[];
  unix: string[];
}

function listenersOf(pid: number): Listeners {
  const found: Listeners = { tcp: [], unix: [] };
  for (const member of family(pid)) {
    const own = socketsOf(member);
    const rows = (name: string): string[][] =>
      readFileSync(`/proc/${member}/net/${name}`, "utf8")
        .trim()
        .split("\n")
        .slice(1)
        .map((line) => line.trim().split(/\s+/));
    for (const row of [...rows("tcp"), ...rows("tcp6")]) {
      if (row[3] === LISTENING_TCP && own.has(row[9] ?? "")) found.tcp.push(row[1] ?? "");
    }
    for (const row of rows("unix")) {
      const isListening = row[3] === LISTENING_UNIX;
      if (isListening && own.has(row[6] ?? "")) found.unix.push(row[7] ?? "");
    }
  }
  return found;
}

/** 127.0.0.0/8, as the kernel shows it on a little-endian machine. */
const LOOPBACK = /^[0-9A-F]{6}7F:/;

function start(home: string, ...argv: string[]): Program {
  const program = new Program(argv, { env: { HOME: home } });
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  return program;
}

test.runIf(process.platform === "linux")(
  "a sidecar with a vault of its own listens on private sockets alone",
  async () => {
    const dir = testDirectory();
    const socket = join(dir, "run", "sidecar.sock");
    const sidecar = start(dir, "sidecar", "--json", "--socket", socket);
    await sidecar.firstResult();
    const { tcp, unix } = listenersOf(sidecar.process.pid ?? 0);
    expect(tcp).toEqual([]);
    expect(unix.length).toBeGreaterThanOrEqual(2);
    const served = [socket, `${socket}.vault`, `${socket}.vault.lanes`];
    for (const path of served) {
      expect([path, statSync(path).mode & 0o777]).toEqual([path, 0o600]);
      expect(statSync(dirname(path)).mode & 0o777).toBe(0o700);
    }
    sidecar.signal("SIGTERM");
    await sidecar.ended();
  },
);

test.runIf(process.platform === "linux")("a vault listens on the loopback", async () => {
  const { config } = checkConfig("", null, {});
  expect(isLocal(config?.vault.listen ?? { host: "?", text: "?" })).toBe(true);
  expect([config?.vault.metricsListen, config?.sidecar.metricsListen]).toEqual([null, null]);
  const dir = testDirectory();
  const args = ["--role", "cold", "--listen", "127.0.0.1:0", "--max-bytes", "16MiB"];
  const vault = start(dir, "vault", "--json", ...args);
  await vault.firstResult();
  const { tcp } = listenersOf(vault.process.pid ?? 0);
  expect(tcp.length).toBeGreaterThanOrEqual(2);
  for (const address of tcp) expect(address).toMatch(LOOPBACK);
});
