// Owns real vaults and clients for tests: port 0, closed after each test, and no leftovers.
import { connect } from "node:net";
import { afterEach } from "vitest";
import type { RecordClass, VaultClass } from "../../src/base/block.ts";
import { splitAddress } from "../../src/base/hosts.ts";
import { createLogger } from "../../src/base/log.ts";
import type { VaultCounter } from "../../src/base/metrics.ts";
import { newVaultCounters } from "../../src/base/metrics.ts";
import type { Gossip } from "../../src/discovery/gossip.ts";
import { startVault } from "../../src/vault/server.ts";
import type { PausableVault, VaultDisk } from "../../src/vault/server.ts";
import type { ChannelSecurity } from "../../src/wire/security.ts";
import { TestClient } from "./record-client.ts";

export const logger = createLogger("test", { level: "silent" });
export const MIB: number = 1024 * 1024;
/** A deadline that only a hung test reaches. */
export const SOON_MS = 90_000;

const open: { close(): unknown }[] = [];

/** Closes `thing` after the test, last opened first. */
export function closeAfterTest<T extends { close(): unknown }>(thing: T): T {
  open.push(thing);
  return thing;
}

afterEach(async () => {
  for (let thing = open.pop(); thing !== undefined; thing = open.pop()) await thing.close();
});

export interface TestVault extends PausableVault {
  /** Counters of the vault. */
  counters: { get(name: VaultCounter): number };
}

export interface TestVaultOptions {
  recordClass?: VaultClass;
  maxBytes?: number;
  tenantBytes?: number | null;
  keptPercent?: number;
  disk?: VaultDisk;
  /** 0: the system chooses. */
  port?: number;
  /** `host:port` of a further address, reported to clients. */
  second?: string;
  /** null: flushes are forgotten with the process. */
  flushFile?: string | null;
  gossip?: Gossip | null;
  /** Whether traced requests become spans. */
  traces?: boolean;
}

export async function openVault(options: TestVaultOptions = {}): Promise<TestVault> {
  const {
    recordClass = "kv",
    maxBytes = 64 * MIB,
    tenantBytes = null,
    keptPercent = 25,
    port = 0,
    second = null,
    disk = null,
    flushFile = null,
    gossip = null,
  } = options;
  const counters = newVaultCounters();
  const vault = await startVault({
    config: {
      listen: { host: "127.0.0.1", port, text: `127.0.0.1:${port}` },
      addresses: second === null ? [] : [{ ...splitAddress(second), text: second }],
      maxBytes,
      tenantBytes,
      keptPercent,
      disk,
      flushFile,
      traces: options.traces === true,
    },
    recordClass,
    logger,
    counters,
    gossip,
  });
  return closeAfterTest({
    address: vault.address,
    counts: () => vault.counts(),
    stats: () => vault.stats(),
    spans: () => vault.spans(),
    trouble: () => vault.trouble(),
    pause: () => vault.pause(),
    resume: () => vault.resume(),
    door: (path) => vault.door(path),
    close: () => vault.close(),
    counters: { get: (name: VaultCounter) => vault.counts()[name] ?? 0 },
  });
}

export function openClient(
  vault: { address: string },
  name: RecordClass = "kv",
  options: {
    lanes?: number;
    security?: ChannelSecurity;
    locals?: readonly string[];
    onWanted?: (() => void) | undefined;
  } = {},
): TestClient {
  return closeAfterTest(new TestClient({ address: vault.address, name, logger, ...options }));
}

/** Returns whether an address accepts connections. */
export function reaches(address: string): Promise<boolean> {
  const socket = connect(splitAddress(address));
  return new Promise<boolean>((resolve) => {
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
  }).finally(() => socket.destroy());
}

/** Polls until `isTrue`, at most SOON_MS. */
export async function until(isTrue: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const endMs = performance.now() + SOON_MS;
  while (!(await isTrue())) {
    if (performance.now() > endMs) throw new Error(`waited in vain for ${what}`);
    await new Promise((resolve) => {
      setTimeout(resolve, 5);
    });
  }
}
