// Owns the proof that an installation as it comes listens to nobody outside its machine, and to no other user in it.
import { readdirSync, readFileSync, readlinkSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { isLocal } from "../../src/base/hosts.ts";
import { VaultClient } from "../../src/client/vault/vault-client.ts";
import { checkConfig } from "../../src/config/check.ts";
import { Program, runInside } from "../support/command-line.ts";
import { testDirectory } from "../support/sidecars.ts";
import { closeAfterTest, logger, SOON_MS } from "../support/vaults.ts";

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
    const served = [socket, `${socket}.vault`];
    for (const path of served) {
      expect([path, statSync(path).mode & 0o777]).toEqual([path, 0o600]);
      expect(statSync(dirname(path)).mode & 0o777).toBe(0o700);
    }
    sidecar.signal("SIGTERM");
    await sidecar.ended();
  },
);

test.runIf(process.platform === "linux")(
  "a vault as it comes listens on sockets of this user alone",
  async () => {
    const { config } = checkConfig("", null, {});
    expect(isLocal(config?.vault.listen ?? { host: "?", text: "?" })).toBe(true);
    expect([config?.vault.metricsListen, config?.sidecar.metricsListen]).toEqual([null, null]);
    const dir = testDirectory();
    const runtime = { HOME: dir, XDG_RUNTIME_DIR: dir };
    const vault = new Program(["vault", "--json", "--role", "cold", "--max-bytes", "16MiB"], {
      env: runtime,
    });
    closeAfterTest({ close: () => vault.signal("SIGKILL") });
    await vault.firstResult();
    const { tcp, unix } = listenersOf(vault.process.pid ?? 0);
    expect(tcp).toEqual([]);
    expect(unix.length).toBeGreaterThanOrEqual(1);
    const socket = join(dir, "tierkv", "vault.sock");
    expect(statSync(socket).mode & 0o777).toBe(0o600);
    expect(statSync(dirname(socket)).mode & 0o777).toBe(0o700);
    const ask = ["status", "--json", "--config", roleOnly(dir)];
    const { exitCode, stdout } = await runInside(ask, { env: runtime });
    const said = JSON.parse(stdout) as { targets: { address: string; reachable: boolean }[] };
    expect(said.targets).toMatchObject([{ address: `unix:${socket}`, reachable: true }]);
    expect(exitCode).toBe(0);
  },
);

function roleOnly(dir: string): string {
  const path = join(dir, "tierkv.toml");
  writeFileSync(path, '[cluster]\nrole = "cold"\n');
  return path;
}

test.runIf(process.platform === "linux")(
  "a vault on the loopback lets nobody in without a token, unless it was told to",
  async () => {
    const dir = testDirectory();
    const args = ["--role", "cold", "--listen", "127.0.0.1:0", "--max-bytes", "16MiB"];
    const vault = start(dir, "vault", "--json", ...args);
    const { address } = (await vault.firstResult()) as unknown as { address: string };
    for (const listening of listenersOf(vault.process.pid ?? 0).tcp) {
      expect(listening).toMatch(LOOPBACK);
    }
    const stranger = new VaultClient({ address, name: "kv", logger, lanes: 0, security: null });
    closeAfterTest(stranger);
    await expect(stranger.stats(SOON_MS)).rejects.toThrow();
    const told = start(dir, "vault", "--json", ...args, "--insecure-lan");
    const open = (await told.firstResult()) as unknown as { address: string };
    const anybody = new VaultClient({
      address: open.address,
      name: "kv",
      logger,
      lanes: 0,
      security: null,
    });
    closeAfterTest(anybody);
    expect((await anybody.stats(SOON_MS)).records).toBe(0);
    told.signal("SIGTERM");
    const { stderr } = await told.ended();
    expect(stderr).toContain("every user of this machine may read and write");
  },
);
