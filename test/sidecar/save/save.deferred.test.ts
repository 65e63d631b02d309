// Owns the proof that blocks are encoded from their slots as they are sent, ahead where slots run short, and that slots return.
import { expect, test } from "vitest";
import { toNamespace } from "../../../src/base/block.ts";
import {
  SAVE_AHEAD_SHARE,
  SAVE_BATCH_BYTES,
  SAVE_BATCH_ITEMS,
} from "../../../src/base/limits/general.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import type { EncodePool } from "../../../src/codec/pool.ts";
import { Saver } from "../../../src/sidecar/save/save.ts";
import type { SaveSource } from "../../../src/sidecar/save/source.ts";
import type { StoreQueue } from "../../../src/sidecar/save/store-queue.ts";
import { BlockOutcomes } from "../../../src/sidecar/trace/block-outcomes.ts";
import { openPools } from "../../../src/sidecar/vaults/pools.ts";
import { Quarantine } from "../../../src/sidecar/vaults/quarantine.ts";
import { RAW_BLOCKS } from "../../support/copies.ts";
import { outboxStatus } from "../../support/native.ts";
import { digest } from "../../support/records.ts";
import { saveSource } from "../../support/save-source.ts";
import { expectNoLeak, saveAll } from "../../support/scene.ts";
import type { Saving } from "../../support/scene.ts";
import { FakeEngine, hashesOf, makeBlocks } from "../../support/shim-client.ts";
import { openSidecar } from "../../support/sidecars.ts";
import type { TestSidecarOptions } from "../../support/sidecars.ts";
import { logger, openClient, openVault, until } from "../../support/vaults.ts";

const PAGE = 8192;
const NAMESPACE = toNamespace(digest("namespace of the deferred records"));

/** Opens an engine whose vault has its lanes up before any save. */
async function openWarm(options: TestSidecarOptions = {}): Promise<Saving> {
  const vault = await openVault();
  const vaults = { kv: openClient(vault), ssm: null };
  const sidecar = await openSidecar({ vaults, ...options });
  const engine = await FakeEngine.start(sidecar.socketPath);
  const { plan } = await engine.done(engine.prefetch(hashesOf(makeBlocks("nobody's", 1, PAGE))));
  engine.release(plan);
  await until(() => sidecar.status().vaults.kv[0]!.lanes === "up", "lanes");
  return { sidecar, engine };
}

test("a few blocks are made by the lanes that send them, and come back", async () => {
  const scene = await openWarm();
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("a", 9, PAGE);
  await saveAll(scene, blocks);
  expect(sidecar.counters.get("blocks_encoded_ahead")).toBe(0);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(view.reason).toBe("complete");
  for (const [index, block] of blocks.entries()) {
    expect(engine.holds(view, index, block)).toBe(true);
  }
  engine.release(view.plan);
  await expectNoLeak(scene);
  expect(outboxStatus()).toEqual({ records: 0, bytes: 0 });
});

test("a block with a NaN, which a lane cannot make in its length, is stored as it is", async () => {
  const scene = await openWarm({ int8: true });
  const { engine, sidecar } = scene;
  const blocks = makeBlocks("nan", 2, PAGE);
  // All but one value of one block have codes.
  for (const { pages } of blocks) {
    for (let at = 1; at < PAGE; at += 2) pages[0]![at] = pages[0]![at]! & 0xbf;
  }
  blocks[1]!.pages[0]!.writeUInt16LE(0x7fc1, 500);
  await saveAll(scene, blocks);
  expect(sidecar.counters.get("blocks_encoded_ahead")).toBe(0);
  const view = await engine.done(engine.prefetch(hashesOf(blocks)));
  expect(view.reason).toBe("complete");
  expect(engine.holds(view, 1, blocks[1]!)).toBe(true);
  const int8Record = 192 + 128 * (2 + 32);
  expect(sidecar.counters.get("bytes_sent")).toBe(int8Record + 192 + PAGE);
  engine.release(view.plan);
  await expectNoLeak(scene);
});

test("where slots run short blocks are encoded ahead of the lanes, and all are stored", async () => {
  const scene = await openWarm();
  const { engine, sidecar } = scene;
  const [worker] = engine.workers;
  const blocks = makeBlocks("many", worker!.credits.length, PAGE);
  await saveAll(scene, blocks);
  expect(sidecar.counters.get("blocks_encoded_ahead")).toBeGreaterThan(0);
  const view = await engine.done(engine.prefetch(hashesOf(blocks.slice(0, 30))));
  for (const index of view.placed.get(0)!.keys()) {
    expect(engine.holds(view, index, blocks[index]!)).toBe(true);
  }
  engine.release(view.plan);
  await expectNoLeak(scene);
});

/** Makes a saver between slots and a vault with controllable room; `aheadBlocks` of them may be encoded ahead. */
function openSaver(isShort: boolean, aheadBlocks = 8) {
  const calls: string[] = [];
  const records = (task: { blocks: readonly unknown[] }): unknown[] =>
    task.blocks.map(() => ({ bytes: 1, drop: () => {} }));
  const pool = {
    defer: (task: { blocks: readonly unknown[] }) => (calls.push("defer"), records(task)),
    encode: (task: { blocks: readonly unknown[] }) =>
      Promise.resolve((calls.push("encode"), records(task))),
  } as unknown as EncodePool;
  const vault = { hasRoom: true, open: [] as { onEnd(): void }[], onRoom: (): void => {} };
  const store = {
    refusal: null,
    batchBytes: SAVE_BATCH_BYTES,
    get hasRoom() {
      return vault.hasRoom;
    },
    whenRoom: (onRoom: () => void) => {
      vault.onRoom = onRoom;
    },
    add: (added: { onEnd(): void }[]) => {
      vault.hasRoom = false;
      vault.open.push(...added);
    },
    shedDeeperThan: () => false,
    flush: () => 0,
  } as unknown as StoreQueue;
  const finished: number[] = [];
  const source = saveSource(PAGE, finished, isShort);
  const options = {
    pool,
    pools: openPools({ kv: [], ssm: [] }),
    stores: { kv: [store], ssm: [] },
    codecs: RAW_BLOCKS,
  };
  const counters = newSidecarCounters();
  const saver = new Saver({
    ...options,
    outcomes: new BlockOutcomes(),
    quarantine: new Quarantine(),
    counters,
    logger,
  });
  saver.room.addArena((aheadBlocks * PAGE) / SAVE_AHEAD_SHARE);
  let slots = 0;
  const save = async (name: string, count: number, from = source, tenant = 0): Promise<void> => {
    const items = makeBlocks(name, count, 16).map(({ hash, parent, endTokens }) => {
      slots += 1;
      return {
        slot: slots,
        generation: 1,
        group: 0,
        hash,
        parent,
        endTokens,
        tenant,
        anchor: hash,
      };
    });
    saver.accept(from, NAMESPACE, items);
    await new Promise(setImmediate);
  };
  return { saver, source, vault, calls, finished, save };
}

test("a deferred record's slots are kept until all of its batch has ended, each of them once", async () => {
  const { vault, calls, finished, save } = openSaver(false);
  await save("a", 2);
  expect(calls).toEqual(["defer"]);
  vault.open[0]!.onEnd();
  expect(finished).toEqual([]);
  vault.open[1]!.onEnd();
  expect(finished).toEqual([1, 2]);
});

test("a vault without room: blocks wait in their slots, and go as one deferred record when it has some", async () => {
  const { vault, calls, save } = openSaver(false);
  vault.hasRoom = false;
  await save("a", 2);
  await save("b", 2);
  expect(calls).toEqual([]);
  vault.hasRoom = true;
  vault.onRoom();
  await new Promise(setImmediate);
  expect(calls).toEqual(["defer"]);
  expect(vault.open).toHaveLength(4);
});

test("saves that wait in slots go with their tenant's flush, and another's stay", async () => {
  const { saver, vault, finished, save, source } = openSaver(false);
  vault.hasRoom = false;
  await save("a", 2, source, 5);
  await save("b", 3, source, 6);
  expect(saver.flush("kv", (_namespace, tenant) => tenant === 5)).toBe(2);
  expect(finished).toEqual([1, 2]);
  vault.hasRoom = true;
  vault.onRoom();
  await new Promise(setImmediate);
  expect(vault.open).toMatchObject([{ tenant: 6 }, { tenant: 6 }, { tenant: 6 }]);
});

test("engines that wait for room take turns", async () => {
  const { source, vault, finished, save } = openSaver(false);
  const deferred: string[] = [];
  const named = (name: string): SaveSource => ({ ...source, finish: () => deferred.push(name) });
  const [a, b] = [named("a"), named("b")];
  vault.hasRoom = false;
  const batch = SAVE_BATCH_ITEMS;
  await save("a1", batch, a);
  await save("a2", batch, a);
  await save("b1", batch, b);
  await save("b2", batch, b);
  for (let turn = 0; turn < 4; turn += 1) {
    vault.hasRoom = true;
    vault.onRoom();
    await new Promise(setImmediate);
    expect(vault.open).toHaveLength(batch);
    for (const { onEnd } of vault.open.splice(0)) onEnd();
  }
  expect(finished).toEqual([]);
  expect(deferred.filter((_, at) => at % batch === 0)).toEqual(["a", "b", "a", "b"]);
});

test("a vault without room and a worker that runs short of slots: they are encoded, and free at once", async () => {
  const { vault, calls, finished, save } = openSaver(true);
  vault.hasRoom = false;
  await save("a", 2);
  expect(calls).toEqual(["encode"]);
  expect(finished).toEqual([1, 2]);
});

test("no more is encoded ahead than a share of the arena: the next blocks keep their slots until a record has gone", async () => {
  const { vault, calls, finished, save } = openSaver(true, 2);
  vault.hasRoom = false;
  await save("a", 3);
  await save("b", 1);
  expect(calls).toEqual(["encode"]);
  expect(finished).toEqual([1, 2]);
  vault.open[0]!.onEnd();
  vault.onRoom();
  await new Promise(setImmediate);
  expect(calls).toEqual(["encode", "encode"]);
  expect(finished).toEqual([1, 2, 3]);
  vault.hasRoom = true;
  vault.onRoom();
  await new Promise(setImmediate);
  expect(calls).toEqual(["encode", "encode", "defer"]);
});

test("of an arena whose share holds no block none is encoded ahead, but where the engine leaves", async () => {
  const { saver, source, vault, finished, save } = openSaver(true, 0.5);
  vault.hasRoom = false;
  await save("a", 2);
  expect(finished).toEqual([]);
  await saver.settle(source);
  expect(finished).toEqual([1, 2]);
});

test("an engine that leaves waits for no room, but for its deferred records", async () => {
  const { saver, source, vault, calls, finished, save } = openSaver(false);
  await save("a", 1);
  vault.hasRoom = false;
  await save("b", 1);
  const settled = saver.settle(source);
  await new Promise(setImmediate);
  expect(calls).toEqual(["defer", "encode"]);
  expect(finished).toEqual([2]);
  vault.open[0]!.onEnd();
  await settled;
  expect(finished).toEqual([2, 1]);
});
