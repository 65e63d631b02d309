// Owns the proof that blocks in an arena return to a vault that lost or evicted them: all, once, slowly, without flushed ones.
import { expect, test, vi } from "vitest";
import { packKeys } from "../../../src/base/block.ts";
import { AGAIN_BYTES_PER_S } from "../../../src/base/limits/again.ts";
import type * as Again from "../../../src/base/limits/again.ts";
import type * as Limits from "../../../src/base/limits/general.ts";
import { FetchPriority } from "../../../src/sidecar/vaults/fetch-priority.ts";
import { openReoffer } from "../../support/copies.ts";
import { openFakeVault } from "../../support/fake-vault.ts";
import { lanePeer, onlyLookups } from "../../support/lanes.ts";
import { rawRecords } from "../../support/raw-calls.ts";
import type { TestClient } from "../../support/record-client.ts";
import { digest, makeRecords } from "../../support/records.ts";
import { saveAll } from "../../support/scene.ts";
import type { Saving } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import type { TestSidecarOptions } from "../../support/sidecars.ts";
import {
  closeAfterTest,
  MIB,
  openClient,
  openVault,
  SOON_MS,
  until,
} from "../../support/vaults.ts";
import type { TestVault } from "../../support/vaults.ts";

vi.mock("../../../src/base/limits/again.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Again>()),
  AGAIN_PAUSE_MS: 60,
  AGAIN_ASK_MS: 100,
  AGAIN_KEYS: 16,
  AGAIN_BYTES_PER_S: 1024 * 1024,
}));
vi.mock("../../../src/base/limits/general.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Limits>()),
  WATCH_PAUSE_MS: 20,
  SAVE_BATCH_BYTES: 256 * 1024,
}));

const LAYERS = 16;
const PAGE = LAYERS * 4096;
const GROUPS = [makeGroup({ layers: LAYERS })];
/** Calls to a vault of several looks at 40 blocks. */
const SEVERAL = 10;
/** Kind of an offer's frame on a lane. */
const OFFER = 9;

interface Host extends Saving {
  client: TestClient;
}

async function openHost(
  vault: { address: string },
  name = "ours",
  options: TestSidecarOptions = {},
): Promise<Host> {
  const client = openClient(vault);
  const sidecar = await openSidecar({ vaults: { kv: client, ssm: null }, ...options });
  const namespace = digest(name);
  const engine = await FakeEngine.start(sidecar.socketPath, { groups: GROUPS, namespace });
  return { client, sidecar, engine };
}

/** Saves blocks, restores and releases them, so that they stay in the arena. */
async function keepCopies(host: Host, blocks: readonly Block[]): Promise<void> {
  await saveAll(host, blocks);
  await visit(host, blocks);
}

async function visit({ engine, sidecar }: Host, blocks: readonly Block[]): Promise<void> {
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(view.reason).toBe("complete");
  engine.release(view.plan);
  const kept = (): number => sidecar.status().engines[0]!.retainedBlocks;
  await until(() => kept() === blocks.length, "the copies");
}

async function restart(vault: TestVault): Promise<TestVault> {
  const port = Number(vault.address.split(":").at(-1));
  await vault.close();
  return await openVault({ port });
}

async function records({ client, engine }: Host, blocks: readonly Block[]): Promise<Buffer[]> {
  const keys = packKeys(hashesOf(blocks), 0, 0);
  const came = await rawRecords(client, engine.namespace, keys);
  return blocks.map((_, index) => came.get(index) ?? Buffer.alloc(0));
}

/** Waits for several looks, in which each sidecar would have offered again: a look reads `isFree` before each call. */
async function severalLooks(count = SEVERAL): Promise<void> {
  const reads = vi.spyOn(FetchPriority.prototype, "isFree", "get");
  await until(() => reads.mock.calls.length >= count, "several looks");
  reads.mockRestore();
}

/** Returns the share of the blocks that a new engine of a new sidecar restores with the right bytes. */
async function restoredElsewhere(
  vault: { address: string },
  blocks: readonly Block[],
): Promise<number> {
  const other = await openHost(vault);
  const view = await other.engine.done(other.engine.prefetch(hashesOf(blocks)));
  const placed = view.placed.get(0)?.length ?? 0;
  const good = blocks.slice(0, placed).filter((block, at) => other.engine.holds(view, at, block));
  other.engine.close();
  await other.sidecar.close();
  return good.length / blocks.length;
}

test("F66 a vault that came back empty is offered the arena's blocks, without a visit: the same records, and a new engine restores them", async () => {
  let vault = await openVault();
  const host = await openHost(vault);
  const blocks = makeBlocks("a", 40, PAGE);
  await keepCopies(host, blocks);
  const before = await records(host, blocks);
  vault = await restart(vault);
  await until(() => vault.stats().records === 40, "all copies");
  // Hash, parent, place in the prompt and bytes, as the engine's worker sent them.
  const after = await records(host, blocks);
  expect(before.map((record, at) => record.equals(after[at]!))).toEqual(before.map(() => true));
  expect(await restoredElsewhere(vault, blocks)).toBe(1);
  const { counters } = host.sidecar;
  // Counted once the sidecar reads the vault's answer, thus after the vault holds the record.
  await until(() => counters.get("copies_offered") === 40, "the last answer");
  expect(counters.get("blocks_saved")).toBe(40);
  expect(host.sidecar.status().engines[0]!.retainedBlocks).toBe(40);
  await severalLooks();
  expect(counters.get("copies_sent_bytes")).toBe(
    before.reduce((sum, { length }) => sum + length, 0),
  );
});

test("F66 blocks of a quarantined namespace are not offered, those of another engine are", async () => {
  let vault = await openVault();
  const host = await openHost(vault, "distrusted");
  const shape = { engine: "sound", groups: GROUPS, namespace: digest("sound") };
  const sound = { ...host, engine: await FakeEngine.start(host.sidecar.socketPath, shape) };
  await keepCopies(host, makeBlocks("d", 8, PAGE));
  const blocks = makeBlocks("e", 8, PAGE);
  await saveAll(sound, blocks);
  await sound.engine.done(sound.engine.prefetch(hashesOf(blocks)));
  const naming = { percent: 100, refused: "another result", distrusted: 1 };
  host.engine.scheduler.send({ t: "counts", counters: {}, naming });
  const { counters } = host.sidecar;
  await until(() => counters.get("namespaces_quarantined") === 1, "the quarantine");
  vault = await restart(vault);
  await until(() => counters.get("copies_offered") >= 8, "the sound copies");
  await severalLooks();
  expect(vault.stats().records).toBe(8);
});

test(
  "F67 blocks that a full vault evicted are offered again, once per use",
  { tags: ["nightly"] },
  async () => {
    const vault = await openVault({ maxBytes: 16 * MIB });
    const host = await openHost(vault);
    const { client, engine, sidecar } = host;
    const blocks = makeBlocks("b", 32, PAGE);
    await keepCopies(host, blocks);
    const keys = packKeys(hashesOf(blocks), 0, 0);
    const held = async (): Promise<number> =>
      [...(await client.lookup(engine.namespace, keys, SOON_MS))].reduce(
        (sum, byte) => sum + byte.toString(2).replaceAll("0", "").length,
        0,
      );
    // A released session's records are evicted first, so that new ones replace them.
    const session = { session: "s", namespace: engine.namespace, tenant: 0, superseded: [] };
    const flood = async (): Promise<void> => {
      await client.keep({ ...session, keys, keepS: 1, release: false }, SOON_MS);
      await client.keep({ ...session, keys, keepS: 0, release: true }, SOON_MS);
      for (let turn = 0; turn < 16 && (await held()) > 0; turn += 1) {
        const namespace = digest(`flood ${turn}`);
        const items = makeRecords(64, { payloadBytes: MIB / 16, namespace });
        await client.put(namespace, items, SOON_MS);
      }
    };
    // Reported busy, because offers during the flood would keep blocks in the vault.
    const busy = vi.spyOn(FetchPriority.prototype, "isFree", "get").mockReturnValue(false);
    closeAfterTest({ close: () => busy.mockRestore() });
    await flood();
    expect(await held()).toBe(0);
    const callsBefore = busy.mock.calls.length;
    await until(() => busy.mock.calls.length > callsBefore + SEVERAL, "several looks");
    expect(await held()).toBe(0);
    busy.mockRestore();
    await until(async () => (await held()) === 32, "all copies");
    expect(await restoredElsewhere(vault, blocks)).toBe(1);
    const { counters } = sidecar;
    await flood();
    const [offered, left] = [counters.get("copies_offered"), await held()];
    expect(left).toBeLessThan(32);
    await severalLooks();
    // Not offered again without a use, because the vault needs its room.
    expect(counters.get("copies_offered")).toBe(offered);
    expect(await held()).toBe(left);
    await visit(host, blocks);
    await until(async () => (await held()) === 32, "all copies");
  },
);

test(
  "F68 ten sidecars that see a vault return offer the lost records and no more, each at its own pace",
  { tags: ["nightly"] },
  async () => {
    let vault = await openVault();
    const hosts = await Promise.all(
      Array.from({ length: 10 }, (_, index) => openHost(vault, `host ${index}`)),
    );
    const blocksOf = (index: number): Block[] => makeBlocks(`c ${index}`, 32, PAGE);
    for (const [index, host] of hosts.entries()) await keepCopies(host, blocksOf(index));
    const lostBytes = vault.counters.get("stored_bytes");
    vault = await restart(vault);
    const startedMs = performance.now();
    await until(() => vault.stats().records === 320, "all copies");
    const tookMs = performance.now() - startedMs;
    const sent = hosts.map(({ sidecar }) => sidecar.counters.get("copies_sent_bytes"));
    const total = sent.reduce((sum, bytes) => sum + bytes, 0);
    expect(total).toBeLessThanOrEqual(lostBytes);
    expect(vault.counters.get("stored_bytes")).toBeLessThanOrEqual(lostBytes);
    // After each call but the last, a sidecar waits for the time of its bytes at its rate.
    const leastMs = ((Math.max(...sent) - 256 * 1024) / AGAIN_BYTES_PER_S) * 1000;
    expect(tookMs).toBeGreaterThan(leastMs * 0.9);
    await severalLooks(10 * SEVERAL);
    expect(vault.counters.get("stored_bytes")).toBeLessThanOrEqual(lostBytes);
  },
);

test("a vault with less room than the arena keeps newer records, and the start of prompts", async () => {
  const vault = await openVault({ maxBytes: 64 * MIB });
  const host = await openHost(vault);
  const blocks = makeBlocks("d", 40, PAGE);
  await keepCopies(host, blocks);
  const port = Number(vault.address.split(":").at(-1));
  await vault.close();
  const small = await openVault({ port, maxBytes: 16 * PAGE });
  const isFull = (): boolean => {
    const { maxBytes, usedBytes, reservedBytes } = small.stats();
    return maxBytes - usedBytes - reservedBytes < PAGE + 4096;
  };
  await until(isFull, "a full vault");
  await severalLooks();
  const keys = packKeys(hashesOf(blocks), 0, 0);
  const held = await host.client.lookup(host.engine.namespace, keys, SOON_MS);
  const count = small.stats().records;
  const bits = Array.from({ length: 40 }, (_, at) => (held[at >> 3]! >> (at & 7)) & 1);
  expect(bits).toEqual(bits.map((_, at) => (at < count ? 1 : 0)));
  expect(vault.counters.get("stored")).toBe(40);
});

test("flushed blocks are not offered again", async () => {
  const vault = await openVault();
  const host = await openHost(vault);
  await keepCopies(host, makeBlocks("e", 12, PAGE));
  await openClient(vault).flush(null, SOON_MS);
  await until(() => host.sidecar.counters.get("flushed_blocks") === 12, "the flush");
  // Others of the same arena, which the vault is asked for.
  await keepCopies(host, makeBlocks("later", 4, PAGE));
  await severalLooks();
  expect(vault.stats().records).toBe(4);
  expect(host.sidecar.counters.get("copies_offered")).toBe(0);
});

test.each(["int8", "int8-mean-had"] as const)(
  "copies of %s records are exact: ten restores, each after a loss, give the same bytes",
  async (kv) => {
    let vault = await openVault();
    const host = await openHost(vault, "ours", { kv });
    const blocks = makeBlocks("f", 8, PAGE);
    // No inf and no NaN, because such blocks are stored raw.
    for (const page of blocks.flatMap(({ pages }) => pages)) {
      for (let at = 1; at < page.length; at += 2) page[at]! &= 0xbf;
    }
    await keepCopies(host, blocks);
    const pagesOf = async ({ engine }: Host): Promise<Buffer[]> => {
      const view = await engine.done(engine.prefetch(hashesOf(blocks)));
      const pages = view.placed.get(0)!.map((slot) => engine.workers[0]!.readSlot(slot, PAGE));
      engine.release(view.plan);
      return pages;
    };
    const first = await pagesOf(host);
    expect(first.some((page, at) => page.equals(blocks[at]!.pages[0]!))).toBe(false);
    let holder = host;
    for (let restore = 2; restore <= 10; restore += 1) {
      vault = await restart(vault);
      await until(() => vault.stats().records === 8, "all copies");
      const { counters } = holder.sidecar;
      // Counted once the sidecar reads the vault's answer, thus after the vault holds the record.
      await until(() => counters.get("copies_offered") === 8, "the last answer");
      const next = await openHost(vault, "ours", { kv });
      const pages = await pagesOf(next);
      expect(first.map((page, at) => page.equals(pages[at]!))).toEqual(first.map(() => true));
      holder.engine.close();
      await holder.sidecar.close();
      holder = next;
    }
  },
);

test("an engine that saves again what it restored stores it exactly", async () => {
  const vault = await openVault();
  const host = await openHost(vault, "ours", { kv: "int8" });
  const blocks = makeBlocks("g", 8, PAGE);
  for (const page of blocks.flatMap(({ pages }) => pages)) {
    for (let at = 1; at < page.length; at += 2) page[at]! &= 0xbf;
  }
  await saveAll(host, blocks);
  const { engine, client } = host;
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  const slots = view.placed.get(0)!;
  const restored = slots.map((slot) => engine.workers[0]!.readSlot(slot, PAGE));
  await client.flush(null, SOON_MS);
  await until(() => host.sidecar.counters.get("flushed_blocks") === 8, "the flush");
  const again = blocks.map((block, at) => ({ ...block, pages: [restored[at]!] }));
  await saveAll(host, again);
  const other = await openHost(vault, "ours", { kv: "int8" });
  const later = await other.engine.done(other.engine.prefetch(hashesOf(blocks)));
  const pages = later.placed.get(0)!.map((slot) => other.engine.workers[0]!.readSlot(slot, PAGE));
  expect(pages.map((page, at) => page.equals(restored[at]!))).toEqual(pages.map(() => true));
  const codecs = (await records(host, blocks)).map((record) => record[8]);
  expect(new Set(codecs), "lossless").toEqual(new Set([1]));
});

test("nothing is offered to a vault that still reads its disk: it may well hold all of it", async () => {
  let recovering = true;
  let stores = 0;
  const Stats = (_call: unknown, done: (error: null, reply: object) => void): void =>
    done(null, { maxBytes: MIB, disk: { recovering } });
  const lookups = onlyLookups(0);
  const lanes = lanePeer((socket, data) => {
    if (data[5] === OFFER) stores += 1;
    lookups(socket, data);
  });
  const client = openClient(await openFakeVault({ Stats }, lanes));
  await client.hello(SOON_MS);
  const looks = closeAfterTest(openReoffer(client));
  await until(() => looks.count() >= 3, "the third look");
  expect(stores).toBe(0);
  recovering = false;
  await until(() => stores > 0, "the offer");
});
