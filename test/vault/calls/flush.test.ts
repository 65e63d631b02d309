// Owns the tests of a vault's flushes: numbered, kept, announced at once or at the next hello; older records are refused.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { hasBit, ItemStatus } from "../../../src/base/block.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { FLUSH_NAMESPACES_TOLD_MAX, FLUSHES_KEPT_MAX } from "../../../src/base/limits/general.ts";
import type * as Native from "../../../src/base/native.ts";
import type { FlushedScope } from "../../../src/client/flush-feed.ts";
import type { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { FlushLog } from "../../../src/vault/flushes/flush-log.ts";
import { Pages } from "../../support/lanes.ts";
import { keysOf, makeRecords, NAMESPACE, OTHER_NAMESPACE } from "../../support/records.ts";
import {
  closeAfterTest,
  logger,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

/** Called before a vault drops a namespace. */
let beforeDrop = (): Promise<void> => Promise.resolve();

vi.mock("../../../src/base/native.ts", async (importOriginal) => {
  const native = await importOriginal<typeof Native>();
  const storeFlush: typeof native.storeFlush = async (...given) => {
    await beforeDrop();
    return await native.storeFlush(...given);
  };
  return { ...native, storeFlush };
});

vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  FLUSH_CONFIRM_MS: 300,
}));

let dir = "";
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "tierkv-flushes-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const EVERY = { namespaces: null, recordClass: 0, model: "", tenant: 0 };
const TENANT = 2 ** 48 - 2;
const A = NAMESPACE.toString("hex");

test("numbers ascend, outlive the process, and say what was missed", () => {
  const file = join(dir, "made", "flushes.json");
  const log = new FlushLog(file, logger);
  expect(log.since(0)).toEqual({ number: 0, everything: false, flushes: [] });
  expect(existsSync(file)).toBe(false);
  const { number: first } = log.begin({ ...EVERY, namespaces: [A], recordClass: 1 });
  const { number: second } = log.begin({ ...EVERY, namespaces: [], model: "m", tenant: TENANT });
  expect(second).toBeGreaterThan(first);
  log.end(first);
  const again = new FlushLog(file, logger);
  expect(again.number).toBe(second);
  expect(again.undone.map(({ number }) => number)).toEqual([second]);
  const named = { everyNamespace: false, number: first, recordClass: 1, model: "", tenant: 0 };
  expect(again.since(0)).toEqual({
    number: second,
    everything: false,
    flushes: [
      { ...named, namespaces: [NAMESPACE] },
      { ...named, number: second, namespaces: [], recordClass: 0, model: "m", tenant: TENANT },
    ],
  });
  expect(again.since(first).flushes.map(({ number }) => number)).toEqual([second]);
  expect(again.since(second)).toEqual({ number: second, everything: false, flushes: [] });
});

test.each([
  [EVERY, true],
  [{ ...EVERY, namespaces: [A, "0".repeat(64)] }, true],
  [{ ...EVERY, namespaces: ["0".repeat(64)] }, false],
  [{ ...EVERY, recordClass: 2 }, false],
  [{ ...EVERY, recordClass: 1 }, true],
  [{ ...EVERY, tenant: TENANT }, false],
])("a flush that failed has ended once it is repeated, wholly, by %j: %j", (again, hasEnded) => {
  const file = join(dir, "flushes.json");
  const log = new FlushLog(file, logger);
  log.carriedOut(log.begin({ ...EVERY, namespaces: [A], recordClass: 1 }).number);
  log.end(log.begin(again).number);
  // A restart would drop what was saved since, too.
  expect(new FlushLog(file, logger).undone.length === 0).toBe(hasEnded);
});

test("a flush that did not end is carried out by the next run, though a later one ended", () => {
  const file = join(dir, "flushes.json");
  const log = new FlushLog(file, logger);
  const { number: first } = log.begin({ ...EVERY, namespaces: [A] });
  const { number: second } = log.begin({ ...EVERY, tenant: TENANT });
  log.end(second);
  const undone = (): number[] => new FlushLog(file, logger).undone.map(({ number }) => number);
  expect(undone()).toContain(first);
  const again = new FlushLog(file, logger);
  again.end(second);
  expect(undone()).toContain(first);
  again.end(first);
  expect(undone()).toEqual([]);
});

test("a sidecar that knows an unknown number, or missed too much, drops all", () => {
  const log = new FlushLog(null, logger);
  const flushed = (scope: Parameters<typeof log.begin>[0]): { number: number } => {
    const { number } = log.begin(scope);
    log.carriedOut(number);
    return { number };
  };
  const all = { everything: true, flushes: [] };
  expect(log.since(7)).toMatchObject(all);
  const { number } = flushed({ ...EVERY, namespaces: [A] });
  expect(log.since(number - 1)).toMatchObject(all);
  expect(log.since(number + 1)).toMatchObject(all);
  for (let count = 0; count < FLUSHES_KEPT_MAX; count += 1) {
    flushed({ ...EVERY, namespaces: [A] });
  }
  expect(log.since(0)).toMatchObject(all);
  expect(log.since(number)).toMatchObject({ everything: false });
  const many = Array.from({ length: FLUSH_NAMESPACES_TOLD_MAX + 1 }, () => A);
  const last = log.number;
  flushed({ ...EVERY, namespaces: many });
  expect(log.since(last)).toMatchObject(all);
});

test("a damaged file costs the sidecars' copies, and no flush is forgotten silently", () => {
  const file = join(dir, "flushes.json");
  const log = new FlushLog(file, logger);
  const { number } = log.begin(EVERY);
  const sound = JSON.parse(readFileSync(file, "utf8")) as object;
  const flush = { number, ...EVERY };
  const damages = [
    "{",
    "[]",
    "null",
    { ...sound, flushes: [{ ...flush, namespaces: ["x"] }] },
    { ...sound, flushes: [{ ...flush, tenant: 2 ** 48 }] },
    { ...sound, flushes: [{ ...flush, tenant: "salt" }] },
  ];
  for (const damage of damages) {
    writeFileSync(file, typeof damage === "string" ? damage : JSON.stringify(damage));
    const again = new FlushLog(file, logger);
    expect(again.since(number)).toMatchObject({ everything: true });
    expect(again.since(0)).toMatchObject({ everything: true });
    expect(again.number).toBeGreaterThanOrEqual(number);
  }
});

/** Collects flushes as a sidecar does. */
function heardBy(client: VaultClient): (readonly FlushedScope[] | null)[] {
  const heard: (readonly FlushedScope[] | null)[] = [];
  client.flushes.listen({ onHello: () => {}, onFlush: (scopes) => heard.push(scopes) });
  return heard;
}

/** Watches as a sidecar does until the test ends, and reports `blocks` dropped for each flush. */
function watches(
  client: VaultClient,
  name: string,
  blocks: number,
  id = name,
): { end(): Promise<void> } {
  const gone = new AbortController();
  const said = { client: id, name, blocks, bytes: blocks * 10, saves: 1, leaving: false };
  const run = async (): Promise<void> => {
    while (!gone.signal.aborted) await client.watch(said, SOON_MS, gone.signal).catch(() => {});
  };
  const running = run();
  const end = (): Promise<void> => {
    gone.abort();
    return running;
  };
  return closeAfterTest({ end, close: end });
}

/** Waits until the vault knows these sidecars. */
async function known(admin: VaultClient, ...names: string[]): Promise<void> {
  const seen = async (): Promise<string[]> =>
    (await admin.flush(OTHER_NAMESPACE, SOON_MS)).sidecars.map(({ name }) => name);
  await until(async () => (await seen()).toSorted().join() === names.join(), "the watchers");
}

test("a watching sidecar is told at once and confirms; an absent one is named, and told at the next hello", async () => {
  const vault = await openVault();
  const [admin, near, away] = [openClient(vault), openClient(vault), openClient(vault)];
  watches(near, "a", 5);
  const other = watches(away, "b", 7);
  await known(admin, "a", "b");
  const heard = heardBy(near);
  const first = await admin.flush(null, SOON_MS, "ssm");
  const scope = { everyNamespace: true, namespaces: [], model: "", tenant: 0 };
  expect(heard).toEqual([[{ ...scope, number: first.number, recordClass: 2 }]]);
  const confirmed = { confirmed: true, quietMs: 0, saves: 1 };
  expect(first.sidecars.toSorted((a, b) => a.name.localeCompare(b.name))).toEqual([
    { ...confirmed, name: "a", blocks: 5, bytes: 50 },
    { ...confirmed, name: "b", blocks: 7, bytes: 70 },
  ]);
  await other.end();
  const { sidecars, number } = await admin.flush(null, SOON_MS);
  const nothing = { confirmed: false, blocks: 0, bytes: 0, saves: 0 };
  expect(sidecars).toContainEqual({ ...nothing, name: "b", quietMs: expect.any(Number) as number });
  expect(sidecars).toContainEqual({ ...confirmed, name: "a", blocks: 5, bytes: 50 });
  const told = heardBy(away);
  await away.hello(SOON_MS);
  expect(told).toEqual([[{ ...scope, number, recordClass: 0 }]]);
  expect(away.flushes.number).toBe(number);
});

test("nobody hears of a flush while a record of it can be fetched", async () => {
  const vault = await openVault();
  const [admin, near, late] = [openClient(vault), openClient(vault), openClient(vault)];
  const records = makeRecords(1);
  await admin.put(NAMESPACE, records, SOON_MS);
  watches(near, "a", 1);
  await known(admin, "a");
  const { number: before } = await admin.flush(OTHER_NAMESPACE, SOON_MS);
  // The news of the flushes that found the watcher may still be on its way.
  await until(() => near.flushes.number === before, "the flushes so far");
  const heard = heardBy(near);
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => (go = resolve));
  let isWaiting = false;
  beforeDrop = () => {
    isWaiting = true;
    return gate;
  };
  const [first, second] = [admin.flush(NAMESPACE, SOON_MS), admin.flush(OTHER_NAMESPACE, SOON_MS)];
  try {
    await until(() => isWaiting, "the flush");
    await late.hello(SOON_MS);
    // Answers the held call, which carries all news.
    await admin.drain(SOON_MS);
    const isHeld = async (): Promise<boolean> =>
      hasBit(await late.lookup(NAMESPACE, keysOf(records), SOON_MS), 0);
    expect(await isHeld()).toBe(true);
    expect([late.flushes.number, heard]).toEqual([before, []]);
  } finally {
    go();
    beforeDrop = () => Promise.resolve();
  }
  await Promise.all([first, second]);
  await until(() => heard.flat().length === 2, "both flushes");
});

test("a sidecar that left is not waited for, and one that took its name replaces it", async () => {
  const vault = await openVault();
  const [admin, near, again] = [openClient(vault), openClient(vault), openClient(vault)];
  const watcher = watches(near, "a", 1);
  await known(admin, "a");
  await watcher.end();
  await known(admin, "a");
  const successor = watches(again, "a", 2, "another");
  await until(async () => (await admin.flush(null, SOON_MS)).sidecars[0]?.blocks === 2, "it");
  expect((await admin.flush(null, SOON_MS)).sidecars).toHaveLength(1);
  await successor.end();
  const leaves = { client: "another", name: "a", blocks: 0, bytes: 0, saves: 0, leaving: true };
  await again.watch(leaves, SOON_MS, new AbortController().signal);
  expect((await admin.flush(null, SOON_MS)).sidecars).toEqual([]);
});

test("a draining vault holds no call", async () => {
  const vault = await openVault();
  const [admin, near] = [openClient(vault), openClient(vault)];
  watches(near, "a", 1);
  await known(admin, "a");
  await vault.close();
});

test("what was made before a flush that takes it is refused, whole or in the middle", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  const pages = await Pages.open(2, 8192);
  const { number } = await client.flush(null, SOON_MS);
  const store = (flushed: number, namespace = NAMESPACE): Promise<number[]> =>
    client.put(namespace, makeRecords(1, { namespace }), SOON_MS, 0, flushed);
  expect(await store(number - 1)).toEqual([ItemStatus.FLUSHED]);
  expect(await store(0)).toEqual([ItemStatus.FLUSHED]);
  expect(await store(number)).toEqual([ItemStatus.ACCEPTED]);
  const encoded = (flushed: number): Promise<number[]> =>
    client.store(NAMESPACE, pages.encode(), SOON_MS, 0, flushed);
  const [there, gone] = await encoded(number - 1);
  expect(gone).toBe(ItemStatus.FLUSHED);
  // Over gRPC alone the flush is checked before presence.
  expect([ItemStatus.PRESENT, ItemStatus.FLUSHED]).toContain(there);
  expect(vault.counters.get("refused_flushed")).toBe(there === ItemStatus.FLUSHED ? 4 : 3);
  const named = await client.flush(NAMESPACE, SOON_MS);
  expect(named.records).toBe(1);
  expect(await encoded(number)).toEqual([ItemStatus.FLUSHED, ItemStatus.FLUSHED]);
  expect(await store(number, OTHER_NAMESPACE)).toEqual([ItemStatus.ACCEPTED]);
  expect(await encoded(named.number)).toEqual([ItemStatus.ACCEPTED, ItemStatus.ACCEPTED]);
});

test("a vault that was restarted in between refuses what was made before, and tells who was away", async () => {
  for (const disk of [
    { dataDir: dir, diskBytes: 64 * MIB, durability: "sync" as const, diskTtlS: null },
    null,
  ]) {
    const where = disk === null ? { flushFile: join(dir, "memory.json") } : { disk };
    let vault: TestVault = await openVault(where);
    const port = Number(vault.address.split(":").at(-1));
    const away = openClient(vault);
    await away.hello(SOON_MS);
    const admin = openClient(vault);
    await admin.put(NAMESPACE, makeRecords(2), SOON_MS);
    const { number } = await admin.flush(NAMESPACE, SOON_MS);
    await vault.close();
    vault = await openVault({ ...where, port });
    const told = heardBy(away);
    await until(
      () =>
        away.hello(SOON_MS).then(
          () => true,
          () => false,
        ),
      "the vault",
    );
    expect(told).toEqual([[expect.objectContaining({ number, namespaces: [NAMESPACE] })]]);
    const records = makeRecords(1);
    const stored = await away.put(NAMESPACE, records, SOON_MS, 0, number - 1);
    expect(stored).toEqual([ItemStatus.FLUSHED]);
    expect([...(await away.lookup(NAMESPACE, keysOf(makeRecords(2)), SOON_MS))]).toEqual([0]);
    await vault.close();
  }
});

test("a flush that was begun and not ended is ended by the next start", async () => {
  const disk = { dataDir: dir, diskBytes: 64 * MIB, durability: "sync" as const, diskTtlS: null };
  const first = await openVault({ disk });
  await openClient(first).put(NAMESPACE, makeRecords(3), SOON_MS);
  await first.close();
  // State after a kill between the two steps.
  new FlushLog(join(dir, "flushes.json"), logger).begin({ ...EVERY, namespaces: [A] });
  const again = openClient(await openVault({ disk }));
  expect([...(await again.lookup(NAMESPACE, keysOf(makeRecords(3)), SOON_MS))]).toEqual([0]);
  await until(async () => (await again.stats(SOON_MS)).disk?.records === 0, "an empty disk");
  expect(new FlushLog(join(dir, "flushes.json"), logger).undone).toEqual([]);
});

test("F70 a tenant goes alone: from memory and disk, over a restart, and what it made before is refused", async () => {
  for (const disk of [
    { dataDir: dir, diskBytes: 64 * MIB, durability: "sync" as const, diskTtlS: null },
    null,
  ]) {
    const where = disk === null ? { flushFile: join(dir, "memory.json") } : { disk };
    let vault: TestVault = await openVault(where);
    const port = Number(vault.address.split(":").at(-1));
    const away = openClient(vault);
    await away.hello(SOON_MS);
    const admin = openClient(vault);
    const all = makeRecords(7);
    const own = all.slice(0, 3);
    await admin.put(NAMESPACE, own, SOON_MS, TENANT);
    await admin.put(NAMESPACE, all.slice(3, 6), SOON_MS, TENANT - 1);
    await admin.put(NAMESPACE, all.slice(6), SOON_MS);
    const keys = keysOf(all);
    const flush = async (...by: [Buffer | null, ("kv" | "ssm")?, string?]): Promise<number> => {
      const [namespace, recordClass = null, model = null] = by;
      return (await admin.flush(namespace, SOON_MS, recordClass, model, TENANT)).records;
    };
    // Flushed together with the tenants that share the namespace.
    expect(await flush(OTHER_NAMESPACE)).toBe(0);
    expect(await flush(null, "ssm")).toBe(0);
    expect(await flush(null, "kv", "another/model")).toBe(0);
    const { number, records, diskBytes } = await admin.flush(
      NAMESPACE,
      SOON_MS,
      "kv",
      null,
      TENANT,
    );
    expect([records, diskBytes > 0]).toEqual([3, disk !== null]);
    expect([...(await admin.lookup(NAMESPACE, keys, SOON_MS))]).toEqual([0b1111000]);
    await vault.close();
    vault = await openVault({ ...where, port });
    const told = heardBy(away);
    const isBack = (): Promise<boolean> =>
      away.hello(SOON_MS).then(
        () => true,
        () => false,
      );
    await until(isBack, "the vault");
    const missed = told[0]?.at(-1);
    expect(missed).toMatchObject({
      number,
      namespaces: [NAMESPACE],
      recordClass: 1,
      tenant: TENANT,
    });
    const [held, stored] =
      disk === null ? [0, ItemStatus.ACCEPTED] : [0b1111000, ItemStatus.DURABLE];
    await until(async () => (await away.stats(SOON_MS)).disk?.recovering !== true, "its disk");
    expect([...(await away.lookup(NAMESPACE, keys, SOON_MS))]).toEqual([held]);
    const again = (tenant: number, flushed: number): Promise<number[]> =>
      away.put(NAMESPACE, own.slice(0, 1), SOON_MS, tenant, flushed);
    expect(await again(TENANT, number - 1)).toEqual([ItemStatus.FLUSHED]);
    expect(await again(TENANT - 1, number - 1)).toEqual([stored]);
    await vault.close();
  }
});

test("a tenant that is no number of 48 bits is refused, and no flush is begun", async () => {
  const vault = await openVault();
  const client = openClient(vault);
  await client.hello(SOON_MS);
  const flush = client.flush(null, SOON_MS, null, null, 2 ** 48);
  await expect(flush).rejects.toThrow(/tenant 281474976710656: expected 48 bits/);
  expect(client.flushes.number).toBe(0);
  await client.hello(SOON_MS);
  expect(client.flushes.number).toBe(0);
});
