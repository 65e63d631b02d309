// Owns vaults that keep a list and sidecars that follow it, as separate processes, for tests.
import { randomBytes } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { Program, runInside } from "./command-line.ts";
import { testDirectory } from "./sidecars.ts";
import { closeAfterTest } from "./vaults.ts";

export interface PooledVault {
  address: string;
  pid: number;
  config: string;
  /** Returns the join line of its first start. */
  joinLine(): string;
  /** Returns its log so far. */
  said(): string;
}

export interface PooledOptions {
  /** Absent: it keeps no list. */
  key?: string;
  peers?: readonly string[];
  /** Whether it uses TLS and tokens. */
  isClosed?: boolean;
  role?: "kv_cold" | "ssm_cold" | "cold";
  /** An earlier vault whose state and address it takes. */
  again?: PooledVault;
  more?: string;
}

/** Writes a file with a new pool key. */
export function poolKey(): string {
  const path = join(testDirectory(), "pool-key");
  writeFileSync(path, `${randomBytes(32).toString("hex")}\n`, { mode: 0o600 });
  return path;
}

export async function startPooled(options: PooledOptions): Promise<PooledVault> {
  const { key, peers = [], isClosed = false, role = "kv_cold", again, more = "" } = options;
  const folder = testDirectory();
  const config = again?.config ?? join(folder, "vault.toml");
  const state = join(dirname(config), "state");
  const list = peers.map((address) => `"${address}"`).join(", ");
  const pool = key === undefined ? "" : `pool_key = "${key}"\npeers = [${list}]\n`;
  const open = isClosed ? "" : "insecure_lan = true\n";
  if (again === undefined) {
    writeFileSync(
      config,
      `[cluster]\nrole = "${role}"\n[vault]\n${open}listen = "127.0.0.1:0"\nmax_bytes = "64MiB"\n` +
        `state_dir = "${state}"\n${pool}${more}`,
    );
  }
  const program = new Program(["vault", "--json", "--config", config]);
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  const address = String((await program.firstResult())["address"]);
  // Written down for commands on its machine, and for another start at the same address.
  const text = readFileSync(config, "utf8");
  writeFileSync(config, text.replace(/listen = .*/, `listen = "${address}"`));
  return {
    address,
    pid: program.process.pid!,
    config,
    joinLine: () => readFileSync(join(state, "invitation"), "utf8").trim(),
    said: () => program.stderr,
  };
}

export interface Following {
  config: string;
  /** Vaults by address; empty while the sidecar does not answer. */
  seen(): Promise<Map<string, { source: string; state: string; lanes: string; share: number }>>;
  counter(name: string): Promise<number>;
  /** Returns its log so far. */
  said(): string;
  kill(): void;
}

/** Starts a sidecar with this `[cluster]`; `[sidecar]` is added here. */
export async function followVaults(cluster: string, folder = testDirectory()): Promise<Following> {
  const config = join(folder, "tierkv.toml");
  const socket = join(testDirectory(), "s.sock");
  writeFileSync(
    config,
    `${cluster}\n[vault]\nstate_dir = "${join(folder, "state")}"\n[sidecar]\nsocket = "${socket}"\n`,
  );
  const program = new Program(["sidecar", "--json", "--config", config]);
  closeAfterTest({ close: () => program.signal("SIGKILL") });
  await program.firstResult();
  return {
    config,
    said: () => program.stderr,
    kill: () => program.signal("SIGKILL"),
    async seen() {
      const { stdout } = await runInside(["vaults", "ls", "--json", "--config", config]);
      const { vaults = [] } = JSON.parse(stdout) as { vaults?: Record<string, unknown>[] };
      return new Map(vaults.map((row) => [String(row["address"]), row as never]));
    },
    async counter(name) {
      const { stdout } = await runInside(["status", "--json", "--config", config]);
      const found = new RegExp(`"${name}":(\\d+)`).exec(stdout);
      return Number(found?.[1] ?? 0);
    },
  };
}
