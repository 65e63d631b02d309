// Owns the proof that a vault with a hanging disk still serves records in memory, and writes queued ones once the disk recovers.
// @module-tag nightly
import { join } from "node:path";
import { expect, test } from "vitest";
import { hasBit, ItemStatus, packKeys } from "../../src/base/block.ts";
import type { DiskStats } from "../../src/wire/messages.ts";
import { rawRecords } from "../support/raw-calls.ts";
import { makeRecord, OTHER_NAMESPACE } from "../support/records.ts";
import { MIB, openClient, SOON_MS, until } from "../support/vaults.ts";
import { HungDisk, threadsAtDisk, whyNoFreezing, whyNoStalling } from "./lib/hung-disk.ts";
import { KillableVault } from "./lib/killable.ts";
import { COARSE } from "./lib/load.ts";
import { FLOOR, openStand, underLoad } from "./lib/stand.ts";
import type { Stand } from "./lib/stand.ts";

const TEST_MS_MAX = 300_000;
/** Keys of a client's call over gRPC while the disk hangs. */
const ASKED = 32;
/** Bound on a call that needs no disk, on a busy machine. */
const QUICK_MS = 5000;

interface Scene {
  stand: Stand;
  vault: KillableVault;
  disk: HungDisk;
  stats(): Promise<DiskStats>;
}

async function openScene(disk: HungDisk): Promise<Scene> {
  const shape = { isDurable: true, dataDir: join(disk.folder, "data"), diskBytes: "64MiB" };
  const vault = await KillableVault.start({ ...shape, under: disk.under });
  const stand = await openStand({ vault, grain: COARSE, chains: 48, freshEvery: 4 });
  const client = openClient(vault, "kv", { lanes: 0 });
  const stats = async (): Promise<DiskStats> => (await client.stats(SOON_MS)).disk!;
  return { stand, vault, disk, stats };
}

/** Threads of the vault that wait for the disk. */
const waiting = ({ vault }: Scene): number => threadsAtDisk(vault.pid);

/** Expects look-ups and records in memory to work over gRPC and lanes. */
async function networkLives({ stand, vault }: Scene): Promise<void> {
  const { load, sidecar } = stand;
  const fromVault = (): number => sidecar.counters.get("blocks_restored_vault");
  const before = fromVault();
  await load.wholeMore(FLOOR, "while the disk hangs");
  await until(() => fromVault() > before + FLOOR, "restores on lanes while the disk hangs");
  const client = openClient(vault, "kv", { lanes: 0 });
  const { namespace } = load.engine;
  // Sampled from all chains, of which some are new and not stored yet.
  const every = Math.ceil(load.blocks.length / ASKED);
  const asked = load.blocks.filter((_, index) => index % every === 0);
  const keys = asked.map(({ hash }) => packKeys(hash, 0, 0));
  const held = await client.lookup(namespace, Buffer.concat(keys), SOON_MS);
  const known = keys.filter((_, index) => hasBit(held, index));
  expect(known.length).toBeGreaterThan(0);
  const came = await rawRecords(vault, namespace, Buffer.concat(known));
  expect(came.size).toBeGreaterThan(0);
  client.close();
}

/** Expects records stored meanwhile to become durable. */
async function recovers({ stats }: Scene): Promise<void> {
  const isWritten = async (): Promise<boolean> => {
    const { queuedRecords, failing } = await stats();
    return queuedRecords === 0 && !failing;
  };
  await until(isWritten, "all to be written after the fault");
}

test("F14 a disk that takes no more writes", { timeout: TEST_MS_MAX }, async ({ skip }) => {
  const why = whyNoFreezing();
  skip(why !== null, why ?? "");
  const scene = await openScene(new HungDisk());
  const { stand, vault, disk, stats } = scene;
  let thaw = async (): Promise<void> => {};
  await underLoad(stand, {
    inject: async () => {
      thaw = await disk.freeze(vault.pid);
    },
    acted: async () => waiting(scene) > 0 && (await stats()).queuedRecords > 0,
    during: () => networkLives(scene),
    heal: () => thaw(),
  });
  await recovers(scene);
});

test("F14 a disk that gives no more reads", { timeout: TEST_MS_MAX }, async ({ skip }) => {
  const why = whyNoStalling();
  skip(why !== null, why ?? "");
  const scene = await openScene(new HungDisk());
  const { stand, vault, disk } = scene;
  let goOn = async (): Promise<void> => {};
  await underLoad(stand, {
    // The vault is restarted, so that its records are on disk only.
    inject: async () => {
      await vault.stop();
      await vault.startAgain({ under: disk.under });
      goOn = disk.stallReads(vault.pid);
    },
    acted: () => waiting(scene) > 0,
    during: () => others(scene),
    heal: () => goOn(),
  });
});

/** Expects everything without a disk read to work: look-ups, and records stored now and fetched from memory. */
async function others({ vault }: Scene): Promise<void> {
  const client = openClient(vault);
  for (let turn = 0; turn < 5; turn += 1) {
    const item = makeRecord(turn, { payloadBytes: MIB, namespace: OTHER_NAMESPACE });
    const [status] = await client.put(OTHER_NAMESPACE, [item], QUICK_MS);
    expect([ItemStatus.ACCEPTED, ItemStatus.DURABLE]).toContain(status);
    expect((await client.take(OTHER_NAMESPACE, item.key, QUICK_MS)).records.size).toBe(1);
  }
  expect(threadsAtDisk(vault.pid), "the disk still hangs").toBeGreaterThan(0);
  client.close();
}
