// Owns the set-up of fault tests: a real vault behind seeded proxies, a sidecar, an engine's load, and the check of survival.
import { readdirSync } from "node:fs";
import { expect } from "vitest";
import type { SidecarStatus } from "../../../src/sidecar/status.ts";
import { inboxStatus } from "../../support/native.ts";
import { openSidecar } from "../../support/sidecars.ts";
import type { TestSidecar, TestSidecarOptions } from "../../support/sidecars.ts";
import {
  closeAfterTest,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";
import type { TestVaultOptions } from "../../support/vaults.ts";
import { openByteProxy, Weather } from "./byte-proxy.ts";
import type { ByteProxy } from "./byte-proxy.ts";
import { Load } from "./load.ts";
import type { LoadShape } from "./load.ts";
import { testSeed } from "./random.ts";

/** Plans that must bring everything before a fault, and again after it. */
export const FLOOR = 20;
/** Plans that must end while the fault acts. */
const DURING = 4;

export interface Stand {
  seed: number;
  vault: { address: string };
  /** Faults of all connections to the vault. */
  weather: Weather;
  proxy: ByteProxy;
  sidecar: TestSidecar;
  load: Load;
}

export type StandOptions = Omit<TestSidecarOptions, "vaults"> &
  Partial<LoadShape> & {
    vault?: TestVaultOptions | { address: string };
    /** Further vaults of the same pool, each behind a proxy with the same faults. */
    more?: number;
  };

export async function openStand(options: StandOptions = {}): Promise<Stand> {
  const seed = options.seed ?? testSeed();
  const { vault: given = {}, more = 0 } = options;
  const vault = "address" in given ? given : await openVault(given);
  const weather = new Weather(seed);
  const proxy = await openByteProxy(weather, vault.address);
  const proxies = [proxy];
  while (proxies.length <= more) {
    const { address } = await openVault();
    proxies.push(await openByteProxy(weather, address));
  }
  const sidecar = await openSidecar({
    // Always restore, because under faults the cost model would compute and there would be no traffic.
    when: "always",
    // A sixth of the load's blocks, so that most come from the vault.
    arenaBytes: MIB,
    waitMs: 5000,
    stallMs: 1000,
    ...options,
    vaults: { kv: proxies.map((each) => openClient(each)), ssm: null },
  });
  const load = await Load.open(sidecar.socketPath, { ...options, seed });
  // Stopped after the test, because a failed test must not leave a load against closing processes.
  closeAfterTest({ close: () => load.stop() });
  return { seed, vault, weather, proxy, sidecar, load };
}

export interface Fault {
  inject(): unknown;
  /** Whether the fault had an effect; a run without one fails. */
  acted(): boolean | Promise<boolean>;
  /** Checked while the fault acts. */
  during?(): unknown;
  heal(): unknown;
}

/** Runs traffic, the fault, and traffic: the floor holds before and after, nothing is wrong, nothing is left over. */
export async function underLoad(stand: Stand, fault: Fault): Promise<void> {
  const { load, sidecar } = stand;
  const fromVault = (): number => sidecar.counters.get("blocks_restored_vault");
  load.start();
  await load.wholeMore(FLOOR, "before the fault");
  expect(fromVault(), "restores must come from the vault").toBeGreaterThan(FLOOR);
  const before = resources();
  await fault.inject();
  await until(fault.acted, "the fault to act");
  await load.plansMore(DURING);
  await fault.during?.();
  await fault.heal();
  const healedAt = fromVault();
  await load.wholeMore(FLOOR, "after the fault");
  await until(() => fromVault() > healedAt + FLOOR, "restores from the vault after the fault");
  await load.stop();
  expect(load.ledger.wrong).toBe(0);
  await expectNothingLeft(stand, before);
}

export interface Resources {
  handles: number;
  threads: number;
}

/** Resources of this process, in which vault, proxies and sidecar run. Linux only. */
export function resources(): Resources {
  return {
    handles: readdirSync("/proc/self/fd").length,
    threads: readdirSync("/proc/self/task").length,
  };
}

/** Handles of connections remade for other reasons: a probe's channel, a hello for new lanes. */
const HANDLES_MORE = 6;

/** Resources that a sidecar and a vault hold for a stopped load, in any processes. */
export interface Held {
  status(): SidecarStatus | Promise<SidecarStatus>;
  load: Load;
  vault: { address: string };
}

/** Expects slots, plans, fetches and reservations in the vault as without the fault. */
export async function expectEven({ status, load, vault }: Held): Promise<void> {
  const isIdle = async (): Promise<boolean> => {
    const { engines, saves } = await status();
    return engines[0]?.plans === 0 && engines[0].fetches === 0 && saves.queuedBlocks === 0;
  };
  await until(isIdle, "plans, fetches and saves to end");
  const isEven = async (): Promise<boolean> => {
    const { arena, retainedBlocks } = (await status()).engines[0]!;
    const credits = load.engine.workers.reduce((sum, worker) => sum + worker.credits.length, 0);
    return (
      arena!.leasedSlots === credits + retainedBlocks * load.engine.shards &&
      arena!.freeSlots + arena!.leasedSlots === arena!.touchedSlots
    );
  };
  await until(isEven, "all slots to be free, granted or retained");
  const client = openClient(vault, "kv", { lanes: 0 });
  const reserved = async (): Promise<number> => (await client.stats(SOON_MS)).reservedBytes;
  await until(async () => (await reserved()) === 0, "reservations to end");
  client.close();
}

/** Expects the same, and inboxes, handles and threads. */
export async function expectNothingLeft(stand: Stand, before: Resources): Promise<void> {
  await expectEven({ ...stand, status: () => stand.sidecar.status() });
  expect(inboxStatus().records).toBe(0);
  await until(() => resources().handles <= before.handles + HANDLES_MORE, "handles to be closed");
  await until(() => resources().threads <= before.threads, "threads to end");
}
