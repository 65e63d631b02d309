// Owns the proof of the border: every function of the core is there, and its failures carry codes.
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import * as native from "../../src/base/native.ts";
import { sleep } from "../../src/base/time.ts";
import {
  crc32c,
  parseRecordHeader,
  readSlot,
  retainSlot,
  verifyRecord,
  writeSlot,
} from "../support/native.ts";

test("the core is the one that was built", () => {
  expect(native.coreInfo()).toMatchObject({ version: "0.1.0", recordVersion: 1, headerBytes: 192 });
});

test("every function the core exports has its guarded twin, and none besides", async () => {
  const core = (await import("../../crates/node/index.js")) as Record<string, unknown>;
  const names = (module: object): string[] =>
    Object.entries(module)
      .filter(([, value]) => typeof value === "function")
      .map(([name]) => name)
      .sort();
  expect(names(native)).toEqual(names(core));
});

test("every function the core exports is called by the product: what only tests call has a feature of its own", () => {
  const folder = fileURLToPath(new URL("../../src/", import.meta.url));
  const text = readdirSync(folder, { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts") && name !== "native.ts")
    .map((name) => readFileSync(folder + name, "utf8"))
    .join("\n");
  const unused = Object.entries(native).filter(
    ([name, value]) => typeof value === "function" && !new RegExp(`\\b${name}\\b`).test(text),
  );
  expect(unused.map(([name]) => name)).toEqual([]);
});

test("a record's header survives writing, parsing and verifying", () => {
  const payload = Buffer.from("0123456789abcdef");
  const header: native.RecordHeader = {
    codec: 0,
    recordClass: 2,
    fidelity: 0,
    layout: 1,
    group: 3,
    shard: 1,
    shardCount: 2,
    dtype: 0,
    parts: 0,
    tokens: 16,
    layers: 2,
    heads: 0,
    dimK: 0,
    dimV: 0,
    endTokens: 32,
    payloadBytes: payload.length,
    sourceBytes: payload.length,
    namespace: Buffer.alloc(32, 1),
    blockHash: Buffer.alloc(32, 2),
    parentHash: Buffer.alloc(32, 3),
  };
  const record = native.writeRecord(header, payload);
  expect(record).toHaveLength(192 + payload.length);
  expect(parseRecordHeader(record)).toEqual(header);
  expect(verifyRecord(record)).toEqual(header);
});

test("a slot is leased, written, shared, and free when its last share is gone", async () => {
  const { id } = native.createArena({ slotBytes: 4096, slotCount: 2, dir: null, label: 1 });
  native.prefaultArena(id);
  while (native.arenaStatus(id).touchedSlots < 2) await sleep(1);
  const [slot = -1, generation = -1] = native.leaseSlots(id, 7, 1);
  writeSlot(id, slot, Buffer.alloc(4096, 0x5a));
  expect(readSlot(id, slot)).toEqual(Buffer.alloc(4096, 0x5a));
  retainSlot(id, slot, generation);
  expect(native.releaseSlot(id, slot, generation)).toBe(false);
  expect(native.arenaStatus(id)).toMatchObject({ freeSlots: 1, leasedSlots: 1 });
  expect(native.releaseSlot(id, slot, generation)).toBe(true);
  expect(native.arenaStatus(id)).toMatchObject({ freeSlots: 2, leasedSlots: 0 });
  native.closeArena(id);
});

test("checksums are CRC32C", () => {
  expect(crc32c(Buffer.from("123456789"))).toBe(0xe3069283);
});

test.each([
  ["a record that is none", () => verifyRecord(Buffer.alloc(8)), "BAD_RECORD"],
  ["an id of nothing", () => native.storeStats(0xffff as native.StoreId), "UNKNOWN_ID"],
  [
    "an impossible arena",
    () => native.createArena({ slotBytes: 1, slotCount: 1, dir: null, label: 1 }),
    "BAD_ARGUMENT",
  ],
])("%s is refused with a code", (_what, call, code) => {
  expect(call).toThrow(expect.objectContaining({ name: "TierkvError", code }) as Error);
});
