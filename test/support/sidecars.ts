// Owns real sidecars for tests: a socket in its own directory, vaults beside it, closed after each test.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RecordClass } from "../../src/base/block.ts";
import type { Logger } from "../../src/base/log.ts";
import { newSidecarCounters } from "../../src/base/metrics.ts";
import type { SidecarCounters } from "../../src/base/metrics.ts";
import type { BlockStore } from "../../src/client/source.ts";
import { checkConfig } from "../../src/config/check.ts";
import type { Config, KvCodec } from "../../src/config/config.ts";
import { startSidecar } from "../../src/sidecar/sidecar.ts";
import type { RunningSidecar } from "../../src/sidecar/sidecar.ts";
import type { Ended } from "../../src/sidecar/trace/decisions.ts";
import type { MemberSource } from "../../src/sidecar/vaults/pool-members.ts";
import type { VaultClients } from "../../src/sidecar/vaults/pools.ts";
import { corruptRecord } from "./native.ts";
import { closeAfterTest, logger, MIB, openClient, openVault } from "./vaults.ts";
import type { TestVault } from "./vaults.ts";

/** Makes a directory of mode 0700, removed after the test. */
export function testDirectory(): string {
  const path = mkdtempSync(join(tmpdir(), "tierkv-test-"));
  closeAfterTest({ close: () => rmSync(path, { recursive: true, force: true }) });
  return path;
}

export interface TestSidecarOptions {
  socket?: string;
  arenaBytes?: number;
  arenaDir?: string | null;
  waitMs?: number;
  stallMs?: number;
  when?: "faster" | "always";
  redundancy?: "none" | "copies:2";
  /** Whether attention KV is stored as INT8; off, because most tests compare bytes. */
  int8?: boolean;
  /** Codec, overrides `int8`. */
  kv?: KvCodec;
  kvDim?: number | null;
  /** Options of receipts; absent: none are written. */
  receipts?: Partial<Config["receipts"]>;
  maxKld?: number;
  /** Folder of certificates; absent: there are none. */
  certificates?: string;
  /** `[turbo_quant] enabled`; absent: unset. */
  enabled?: boolean;
  logger?: Logger;
  members?: MemberSource;
  onEnded?: (ended: Ended) => void;
  /** Vaults of a class: one, several, or none. */
  vaults?: Record<RecordClass, BlockStore | readonly BlockStore[] | null>;
}

/** Returns the clients in the form that a sidecar takes. */
export function clientsOf({ kv, ssm }: NonNullable<TestSidecarOptions["vaults"]>): VaultClients {
  return { kv: [kv ?? []].flat(), ssm: [ssm ?? []].flat() };
}

function codecOf(options: TestSidecarOptions): Partial<Config["codec"]> {
  const { kv, int8, kvDim, maxKld, certificates = "/nonexistent" } = options;
  const isLossy = int8 ?? (kvDim ?? null) !== null;
  const bound = maxKld === undefined ? {} : { maxKld };
  return { kv: kv ?? (isLossy ? "int8" : "raw"), certificates, ...bound };
}

/** Returns the defaults, except for what tests must not touch or wait for. */
export function testConfig(options: TestSidecarOptions & { socket: string }): Config {
  const { config } = checkConfig("", null, {});
  if (config === null) throw new Error("the defaults are no configuration");
  const listen = { host: "127.0.0.1", port: 0, text: "127.0.0.1:0" };
  const kvDim = options.kvDim ?? null;
  return {
    ...config,
    cluster: {
      ...config.cluster,
      redundancy: options.redundancy ?? "none",
      credentials: "/nonexistent",
    },
    turboQuant: { ...config.turboQuant, kvDim, enabled: options.enabled ?? null },
    codec: { ...config.codec, ...codecOf(options) },
    vault: { ...config.vault, listen, maxBytes: 64 * MIB, stateDir: "/nonexistent" },
    sidecar: {
      ...config.sidecar,
      autostart: false,
      socket: options.socket,
      arenaBytes: options.arenaBytes ?? 64 * MIB,
      arenaDir: options.arenaDir ?? null,
    },
    restore: {
      waitMs: options.waitMs ?? 10_000,
      stallMs: options.stallMs ?? 5000,
      when: options.when ?? "faster",
      verify: "off",
    },
    gateway: { ...config.gateway, listen, socket: "/nonexistent", indexFile: "/nonexistent" },
    receipts: { ...config.receipts, dir: "/nonexistent", ...options.receipts },
    ledger: { watts: 350 },
    log: { level: "silent" },
  };
}

export interface TestSidecar extends RunningSidecar {
  counters: SidecarCounters;
}

export async function openSidecar(options: TestSidecarOptions = {}): Promise<TestSidecar> {
  const counters = newSidecarCounters();
  const socket = options.socket ?? join(testDirectory(), "sidecar.sock");
  const sidecar = await startSidecar({
    config: testConfig({ ...options, socket }),
    vaults: clientsOf(options.vaults ?? { kv: null, ssm: null }),
    members: options.members ?? null,
    onEnded: options.onEnded ?? null,
    logger: options.logger ?? logger,
    counters,
  });
  return closeAfterTest({
    socketPath: sidecar.socketPath,
    idleMs: () => sidecar.idleMs(),
    status: () => sidecar.status(),
    look: () => sidecar.look(),
    explain: (req, most) => sidecar.explain(req, most),
    close: () => sidecar.close(),
    counters,
  });
}

/** Flips a byte of a record in this process's vault that holds it. Throws when none does. */
export function corruptStored(namespace: Buffer, key: Buffer, offset: number): void {
  inSomeStore((store) => corruptRecord(store, namespace, key, offset));
}

function inSomeStore(work: (store: number) => void): void {
  // Ids of stores are small consecutive numbers.
  for (let store = 1; store < 10_000; store += 1) {
    try {
      work(store);
      return;
    } catch {
      // A closed store, or one without that record.
    }
  }
  throw new Error("no vault of this process holds the record");
}

export interface TestStack {
  sidecar: TestSidecar;
  kv: TestVault;
  ssm: TestVault;
}

/** Opens a kv vault, an ssm vault and a sidecar that uses both. */
export async function openStack(options: TestSidecarOptions = {}): Promise<TestStack> {
  const kv = await openVault();
  const ssm = await openVault({ recordClass: "ssm" });
  const vaults = { kv: openClient(kv), ssm: openClient(ssm, "ssm") };
  return { kv, ssm, sidecar: await openSidecar({ vaults, ...options }) };
}
