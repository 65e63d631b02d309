// Owns the proof of hand-offs between engines with different block lengths: records are cut by token range, unsound ones are computed.
import { createHash } from "node:crypto";
import { expect, test, vi } from "vitest";
import { packKeys } from "../../../src/base/block.ts";
import { VaultClient } from "../../../src/client/vault/vault-client.ts";
import { damageAll, openShared, regionAddress } from "../../support/regions.ts";
import { expectNoLeak, openScene, saveAll } from "../../support/scene.ts";
import type { Scene } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks, makeGroup } from "../../support/shim-client.ts";
import type { Block } from "../../support/shim-client.ts";
import { corruptStored, openSidecar } from "../../support/sidecars.ts";
import type { TestSidecarOptions } from "../../support/sidecars.ts";
import { closeAfterTest, openClient } from "../../support/vaults.ts";
import { MIB, SOON_MS, until } from "../../support/vaults.ts";

const [LONG, SHORT] = [64, 16];
const RATIO = LONG / SHORT;
const RECORDS = 5;
const BLOCKS = RECORDS * RATIO;
/** Two layers of two heads, K and V of 32 elements in bf16. */
const [ROWS, ROW_BYTES] = [4, 128];
const NAMESPACE = createHash("sha256").update("of longer blocks").digest();

interface Pair extends Pick<Scene, "sidecar" | "engine"> {
  /** Engine with longer blocks. */
  producer: FakeEngine;
  long: Block[];
  short: Block[];
  /** Begins the hand-off of all blocks. */
  ask(more?: { from?: number; of?: FakeEngine }): number;
}

/** Makes elements for which every codec has codes. */
function calm(page: Buffer): Buffer {
  for (let at = 1; at < page.length; at += 2) page[at] = 0x3f;
  return page;
}

/** Returns the tokens of a short block from the long one that contains it. */
function piece(page: Buffer, number: number): Buffer {
  const rows = Array.from({ length: ROWS }, (_, row) => {
    const first = (row * LONG + number * SHORT) * ROW_BYTES;
    return page.subarray(first, first + SHORT * ROW_BYTES);
  });
  return Buffer.concat(rows);
}

async function pairOn(sidecar: Scene["sidecar"], engine: FakeEngine, world = 1): Promise<Pair> {
  const producer = await FakeEngine.start(sidecar.socketPath, {
    engine: "producer",
    hello: { producer: 1 },
    namespace: NAMESPACE,
    groups: [makeGroup({ tokens: LONG })],
    world,
  });
  const long = makeBlocks("long", RECORDS, ROWS * LONG * ROW_BYTES, world).map((block, at) => ({
    ...block,
    endTokens: (at + 1) * LONG,
    pages: block.pages.map(calm),
  }));
  const short = makeBlocks("short", BLOCKS, 0).map((block, at) => ({
    ...block,
    pages: long[Math.floor(at / RATIO)]!.pages.map((page) => piece(page, at % RATIO)),
  }));
  const ask = ({ from = 0, of = engine } = {}): number =>
    of.prefetchGroups([{ group: 0, class: "kv", hashes: hashesOf(short), from }], {
      handoff: BLOCKS * SHORT,
      longer: { namespace: NAMESPACE, tokens: LONG, hashes: hashesOf(long) },
    });
  return { sidecar, engine, producer, long, short, ask };
}

async function openPair(options: TestSidecarOptions = {}, world = 1): Promise<Pair & Scene> {
  const scene = await openScene(options, { world });
  return { ...scene, ...(await pairOn(scene.sidecar, scene.engine, world)) };
}

const save = ({ producer, sidecar }: Pair, blocks: readonly Block[]): Promise<void> =>
  saveAll({ engine: producer, sidecar }, blocks);

async function expectRestored(pair: Pair, plan: number, from = 0): Promise<void> {
  const { engine, short } = pair;
  const view = await engine.done(plan);
  expect([view.reason, view.placed.get(0)?.length]).toEqual([
    "complete",
    (BLOCKS - from) * engine.shards,
  ]);
  for (const [at, block] of short.slice(from).entries())
    expect(engine.holds(view, at, block)).toBe(true);
  engine.release(plan);
  await expectNoLeak(pair);
}

test("saves of an engine with longer blocks are cut by token range while the rest is still computed", async () => {
  const pair = await openPair();
  const { engine, sidecar, vault, long, ask } = pair;
  const { counters } = sidecar;
  const plan = ask();
  await save(pair, long.slice(0, 2));
  await until(() => counters.get("handoff_blocks_cut") === 2 * RATIO, "the first blocks");
  expect(engine.view(plan).held).toBeNull();
  await save(pair, long.slice(2));
  await expectRestored(pair, plan);
  expect(counters.get("handoff_records_cut")).toBe(RECORDS);
  expect([counters.get("handoffs"), counters.get("handoffs_late")]).toEqual([1, 0]);
  expect(counters.get("blocks_restored_vault")).toBe(BLOCKS);
  const [account] = sidecar.explain("request", 1);
  expect([account?.longerTokens, account?.why]).toEqual([LONG, "handed_over"]);
  // Short blocks are not stored, because only engines that computed blocks save them.
  const client = openClient(vault);
  await client.hello(SOON_MS);
  expect((await client.stats(SOON_MS)).records).toBe(RECORDS);
  // A later request finds them in the arena.
  const again = await engine.done(engine.prefetch(hashesOf(pair.short)));
  expect(again.placed.get(0)).toHaveLength(BLOCKS);
  engine.release(again.plan);
  await expectNoLeak(pair);
});

test("blocks of two ranks are cut rank by rank", async () => {
  const pair = await openPair({}, 2);
  await save(pair, pair.long);
  await expectRestored(pair, pair.ask());
});

test("tokens that the engine holds itself are not cut", async () => {
  const pair = await openPair();
  await save(pair, pair.long);
  // Starts in the middle of a record.
  await expectRestored(pair, pair.ask({ from: RATIO + 1 }), RATIO + 1);
  expect(pair.sidecar.counters.get("handoff_blocks_cut")).toBe(BLOCKS - RATIO - 1);
});

test.each(["lossless", "int8", "int8-mean-had"] as const)(
  "blocks stored as %s hold what longer ones would after a restore",
  async (kv) => {
    const pair = await openPair({ kv, when: "always" });
    const { engine, producer, sidecar, long, short, ask } = pair;
    await save(pair, long);
    // Another engine of that namespace has none of it in its arena.
    const groups = [makeGroup({ tokens: LONG })];
    const shape = { engine: "reader", namespace: NAMESPACE, groups };
    const reader = await FakeEngine.start(sidecar.socketPath, shape);
    const there = await reader.done(reader.prefetch(hashesOf(long)));
    const view = await engine.done(ask());
    const bytes = ROWS * SHORT * ROW_BYTES;
    for (const at of short.keys()) {
      const slot = there.placed.get(0)![Math.floor(at / RATIO)]!;
      const whole = reader.workers[0]!.readSlot(slot, bytes * RATIO);
      const ours = engine.workers[0]!.readSlot(view.placed.get(0)![at]!, bytes);
      expect(ours.equals(piece(whole, at % RATIO))).toBe(true);
      expect(ours.equals(short[at]!.pages[0]!)).toBe(kv === "lossless");
    }
    reader.close();
    producer.close();
    engine.release(view.plan);
  },
);

test("records of shared memory are cut without a byte on a socket", async () => {
  const address = regionAddress();
  const sidecar = await openSidecar({ vaults: { kv: await openShared(address), ssm: null } });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const pair = await pairOn(sidecar, engine);
  await save(pair, pair.long);
  await expectRestored(pair, pair.ask());
  expect(sidecar.counters.get("blocks_restored_shared")).toBe(BLOCKS);
  damageAll(address);
  const reader = await FakeEngine.start(sidecar.socketPath, { engine: "other" });
  const view = await reader.done(pair.ask({ of: reader }));
  expect([view.reason, view.placed.size]).toEqual(["end_of_hit", 0]);
  expect(sidecar.counters.get("bad_records")).toBeGreaterThan(0);
});

test("F107 a record of longer blocks that is not sound is reported, and its blocks and those behind it are computed at once", async () => {
  const pair = await openPair({ stallMs: 60_000, waitMs: 60_000 });
  const { engine, sidecar, long, ask } = pair;
  await save(pair, long);
  corruptStored(NAMESPACE, packKeys(long[3]!.hash, 0, 0), 4000);
  const view = await engine.done(ask());
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["end_of_hit", 3 * RATIO]);
  const { counters } = sidecar;
  expect([counters.get("bad_records"), counters.get("handoff_records_uncut")]).toEqual([1, 1]);
  engine.release(view.plan);
  await expectNoLeak(pair);
});

test("a report of an unsound record holds up no sound one", async () => {
  const pair = await openPair({ stallMs: 60_000, waitMs: 5_000 });
  const { engine, long, ask } = pair;
  const report = vi.spyOn(VaultClient.prototype, "report").mockReturnValue(new Promise(() => {}));
  closeAfterTest({ close: () => report.mockRestore() });
  await save(pair, long);
  corruptStored(NAMESPACE, packKeys(long[3]!.hash, 0, 0), 4000);
  const view = await engine.done(ask());
  expect([view.reason, view.placed.get(0)?.length]).toEqual(["end_of_hit", 3 * RATIO]);
  expect(report).toHaveBeenCalledOnce();
});

test("a hand-off that is given up leaves no cut block in use", async () => {
  const pair = await openPair({ stallMs: 60_000, waitMs: 60_000 });
  const { engine, sidecar, long, ask } = pair;
  const plan = ask();
  await save(pair, long.slice(0, 2));
  await until(() => sidecar.counters.get("handoff_blocks_cut") === 2 * RATIO, "the first blocks");
  engine.release(plan);
  await until(() => sidecar.counters.get("handoffs") === 1, "the end of the wait");
  await expectNoLeak(pair);
});

test("blocks that are no whole number of an engine's own are computed", async () => {
  const pair = await openPair({ stallMs: 300 });
  const { engine, sidecar, short, long } = pair;
  await save(pair, long);
  const groups = [{ group: 0, class: "kv", hashes: hashesOf(short), from: 0 }];
  const longer = { namespace: NAMESPACE, tokens: LONG - 8, hashes: hashesOf(long) };
  const view = await engine.done(engine.prefetchGroups(groups, { handoff: 64, longer }));
  expect([view.reason, view.placed.size]).toEqual(["end_of_hit", 0]);
  expect(sidecar.counters.get("handoff_records_cut")).toBe(0);
});

test("a flush of the longer blocks' name takes the blocks cut from them", async () => {
  const pair = await openPair({ arenaBytes: 64 * MIB });
  const { engine, vault, long, short, ask } = pair;
  await save(pair, long);
  await expectRestored(pair, ask());
  const client = openClient(vault);
  await client.hello(SOON_MS);
  await client.flush(NAMESPACE, SOON_MS);
  await until(async () => {
    const view = await engine.done(engine.prefetch(hashesOf(short)));
    engine.release(view.plan);
    return view.placed.size === 0;
  }, "the flush to be heard");
});

test("two hand-offs of one prompt share cut blocks", async () => {
  const pair = await openPair();
  const { sidecar, long, ask } = pair;
  const plans = [ask(), ask()];
  await save(pair, long);
  for (const plan of plans) {
    const view = await pair.engine.done(plan);
    expect([view.reason, view.placed.get(0)?.length]).toEqual(["complete", BLOCKS]);
    expect(pair.engine.holds(view, BLOCKS - 1, pair.short[BLOCKS - 1]!)).toBe(true);
  }
  for (const plan of plans) pair.engine.release(plan);
  expect(sidecar.counters.get("handoff_blocks_cut")).toBe(BLOCKS);
  await expectNoLeak(pair);
});
