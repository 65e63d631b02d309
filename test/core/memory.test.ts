// Owns the proof that native memory is shared by threads, and given back by what goes wrong.
import { Worker } from "node:worker_threads";
import { expect, test } from "vitest";
import { outboxDrop, outboxView, releaseSlot } from "../../src/base/native.ts";
import { inboxStatus, receiveRecord, verifyRecord } from "../support/native.ts";
import { keysOf, makeRecord, NAMESPACE } from "../support/records.ts";
import { leaseOne, registerOpaque, withArena } from "../support/slots.ts";

const HASH = Buffer.alloc(32, 5);

test("worker threads encode the slots of the main thread's arena", async () => {
  const geometry = registerOpaque(4096);
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

test("a record that is refused gives back its memory and its slot", async () => {
  const geometry = registerOpaque(4096);
  const { key, record } = makeRecord(0, { payloadBytes: 4096 });
  await withArena({ slotBytes: 4096, slotCount: 1 }, (arena) => {
    const land = (wantedKey: Buffer): unknown => {
      const { slot, generation } = leaseOne(arena);
      const place = [arena, slot, generation, geometry] as const;
      try {
        return receiveRecord(...place, 0, NAMESPACE, wantedKey, record, 1000);
      } finally {
        releaseSlot(arena, slot, generation);
      }
    };
    expect(() => land(keysOf([makeRecord(1)]))).toThrow("its block hash is not the one asked for");
    expect(inboxStatus()).toEqual({ records: 0, bytes: 0 });
    expect(land(key)).toMatchObject({ endTokens: 16 });
    expect(inboxStatus()).toEqual({ records: 0, bytes: 0 });
    leaseOne(arena);
  });
});
