// Owns the proof that native memory is bounded and given back: views, pins, workers, and calls that go wrong.
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Worker } from "node:worker_threads";
import { expect, test } from "vitest";
import { MADE_NOW } from "../../src/limits.ts";
import {
  closeStore,
  createStore,
  encodeSlots,
  inboxAbort,
  inboxFinish,
  inboxWrite,
  openInbox,
  outboxDrop,
  outboxView,
  pinSlice,
  registerGeometry,
  releaseSlot,
  storeCommit,
  storeFlush,
  storePin,
  storeReserve,
  storeStats,
  storeWrite,
  unpin,
} from "../../src/native.ts";
import type { Geometry } from "../../src/native.ts";
import { sleep } from "../../src/time.ts";
import { inboxStatus, outboxStatus, verifyRecord } from "../support/native.ts";
import { keysOf, makeRecord, NAMESPACE } from "../support/records.ts";
import { leaseOne, withArena } from "../support/slots.ts";

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

const MIB = 2 ** 20;
const HASH = Buffer.alloc(32, 5);

const opaque = (layerBytes: number): Geometry => ({
  group: 0,
  recordClass: 1,
  layout: 1,
  dtype: 0,
  tokens: 16,
  layers: 1,
  heads: 0,
  dimK: 0,
  dimV: 0,
  layerBytes,
  keyOffset: 0,
  valueOffset: 0,
  headStride: 0,
  tokenStride: 0,
});

/** Waits until `condition` holds, collecting garbage meanwhile. */
async function eventually(condition: () => boolean): Promise<void> {
  for (let attempt = 0; attempt < 100 && !condition(); attempt += 1) {
    collectGarbage();
    await sleep(5);
  }
  expect(condition()).toBe(true);
}

test("an outbox record lives while it is viewed, and its memory is reused afterwards", async () => {
  const geometry = registerGeometry(opaque(MIB));
  await withArena({ slotBytes: MIB, slotCount: 1 }, async (arena) => {
    const { slot, generation } = leaseOne(arena);
    const item = { slot, generation, shard: 0, shardCount: 1, endTokens: 16 };
    const hashes = { blockHash: HASH, parentHash: HASH };
    const encode = (): number =>
      encodeSlots(arena, geometry, 0, 0, HASH, [{ ...item, ...hashes }])[0] ?? 0;
    const record = encode();
    let view: Buffer | null = outboxView(record);
    outboxDrop(record);
    outboxDrop(record);
    expect(outboxStatus()).toEqual({ records: 0, bytes: MIB + 192 });
    expect(verifyRecord(view).blockHash).toEqual(HASH);
    expect(() => outboxView(record)).toThrow(expect.objectContaining({ code: "UNKNOWN_ID" }));
    view = null;
    await eventually(() => outboxStatus().bytes === 0);

    let bytesMax = 0;
    for (let round = 0; round < 1000; round += 1) {
      const next = encode();
      expect(outboxView(next)[0]).toBe(0x54);
      outboxDrop(next);
      bytesMax = Math.max(bytesMax, outboxStatus().bytes);
      if (round % 8 === 0) await sleep(1);
    }
    expect(bytesMax, "a gigabyte passed; garbage is collected on the way").toBeLessThan(512 * MIB);
    await eventually(() => outboxStatus().bytes === 0);
  });
});

test("worker threads encode the slots of the main thread's arena", async () => {
  const geometry = registerGeometry(opaque(4096));
  await withArena({ slotBytes: 4096, slotCount: 1 }, async (arena) => {
    const lease = leaseOne(arena);
    const script = `
      const { parentPort, workerData } = require("node:worker_threads");
      import(workerData.core).then(({ encodeSlots }) => {
        const { arena, geometry, hash, item } = workerData;
        parentPort.postMessage(encodeSlots(arena, geometry, 0, 0, hash, [item]));
      });
    `;
    const core = new URL("../../crates/node/index.js", import.meta.url).href;
    const item = {
      ...lease,
      shard: 0,
      shardCount: 1,
      endTokens: 1,
      blockHash: HASH,
      parentHash: HASH,
    };
    const workerData = { core, arena, geometry, hash: HASH, item };
    const worker = new Worker(script, { eval: true, workerData });
    const [record = 0, bytes] = await new Promise<Float64Array>((resolve, reject) => {
      worker.once("message", resolve).once("error", reject);
    });
    await worker.terminate();
    expect(bytes).toBe(4096 + 192);
    expect(verifyRecord(outboxView(record)).endTokens).toBe(1);
    outboxDrop(record);
  });
});

test("a store's views need no room, whenever they are collected", async () => {
  const store = createStore({ maxBytes: 4 * MIB, maxRecordBytes: MIB, recordClass: 1 });
  const put = (index: number): number => {
    const { key, record } = makeRecord(index, { payloadBytes: 900_000 });
    const lengths = Float64Array.of(record.length);
    const { reservations, statuses } = storeReserve(store, NAMESPACE, key, lengths, 0, 0, MADE_NOW);
    const [reservation = 0] = reservations;
    if (reservation === 0) return statuses[0] ?? 0;
    expect(storeWrite(reservation, 0, record)).toBe(true);
    return storeCommit(reservation);
  };
  const views: Buffer[] = [];
  for (let index = 0; index < 20; index += 1) {
    expect(put(index), "room is found although every record is viewed").toBe(1);
    const { key, record } = makeRecord(index, { payloadBytes: 900_000 });
    const [pin = 0, bytes = 0] = storePin(store, NAMESPACE, key);
    views.push(pinSlice(pin, 0, bytes));
    unpin(pin);
    unpin(pin);
    expect(views[index]?.equals(record)).toBe(true);
    expect(storeStats(store).usedBytes).toBeLessThanOrEqual(4 * MIB);
  }
  expect(storeStats(store).evicted).toBe(16);
  expect(views[0]?.equals(makeRecord(0, { payloadBytes: 900_000 }).record)).toBe(true);
  await storeFlush(store, 0, null, 0, 0);
  expect(storeStats(store).usedBytes).toBe(0);
  closeStore(store);
  closeStore(store);
});

test("an aborted or refused arrival gives back its memory and its slot", async () => {
  const geometry = registerGeometry(opaque(4096));
  const { key, record } = makeRecord(0, { payloadBytes: 4096 });
  await withArena({ slotBytes: 4096, slotCount: 1 }, (arena) => {
    const open = (wantedKey: Buffer): number => {
      const { slot, generation } = leaseOne(arena);
      const length = record.length;
      const place = [arena, slot, generation, geometry] as const;
      const inbox = openInbox(...place, 0, NAMESPACE, wantedKey, length);
      expect(inboxStatus()).toEqual({ records: 1, bytes: length });
      releaseSlot(arena, slot, generation);
      expect(() => leaseOne(arena), "the slot is still in use").toThrow("no slot");
      return inbox;
    };
    inboxAbort(open(key));
    const refused = open(keysOf([makeRecord(1)]));
    expect(inboxWrite(refused, 0, record)).toBe(true);
    expect(() => inboxFinish(refused)).toThrow("its block hash is not the one asked for");
    expect(() => inboxFinish(refused)).toThrow(expect.objectContaining({ code: "UNKNOWN_ID" }));
    const taken = open(key);
    inboxWrite(taken, 0, record);
    inboxFinish(taken);
    expect(inboxStatus()).toEqual({ records: 0, bytes: 0 });
    leaseOne(arena);
  });
});
