// Owns the proof that keys and bitmaps are packed as docs/protocol.md says, and that statuses are those of the proto.
import { readFileSync } from "node:fs";
import { array, assert, boolean, integer, property, uint8Array } from "fast-check";
import { expect, test } from "vitest";
import {
  className,
  classNumber,
  countBits,
  hasBit,
  HASH_BYTES,
  ItemStatus,
  keyAt,
  keyCount,
  leadingBits,
  newBitmap,
  packKeys,
  runEnd,
  setBit,
  statusName,
  toNamespace,
} from "../../src/base/block.ts";

test("a packed key is hash, group, shard, little-endian", () => {
  const hash = Buffer.alloc(32, 0xab);
  const key = packKeys(hash, 0x0102, 0x0304);
  expect(key.toString("hex")).toBe(`${"ab".repeat(32)}02010403`);
});

test("keys come apart as they were packed", () => {
  const short = integer({ min: 0, max: 0xffff });
  const hashes = array(uint8Array({ minLength: 32, maxLength: 32 }), { maxLength: 20 });
  assert(
    property(hashes, short, short, (list, group, shard) => {
      const keys = packKeys(Buffer.concat(list), group, shard);
      expect(keyCount(keys)).toBe(list.length);
      for (const [index, hash] of list.entries()) {
        const key = keyAt(keys, index);
        expect(key.subarray(0, HASH_BYTES)).toEqual(Buffer.from(hash));
        expect([key.readUInt16LE(HASH_BYTES), key.readUInt16LE(HASH_BYTES + 2)]).toEqual([
          group,
          shard,
        ]);
      }
    }),
  );
});

test("F27 partial hashes, keys and namespaces are refused with their size", () => {
  expect(() => packKeys(Buffer.alloc(33), 0, 0)).toThrow(
    "33 bytes of hashes: expected a multiple of 32",
  );
  expect(() => keyCount(Buffer.alloc(35))).toThrow("35 bytes of keys: expected a multiple of 36");
  expect(() => toNamespace(Buffer.alloc(31))).toThrow("namespace has 31 bytes: expected 32");
});

test("a namespace is a view of the same bytes", () => {
  const bytes = new Uint8Array(64);
  const namespace = toNamespace(bytes.subarray(32));
  bytes[32] = 9;
  expect(namespace[0]).toBe(9);
});

test("bit i is bit i % 8, least significant first, of byte i / 8", () => {
  const bitmap = newBitmap(10);
  expect(bitmap).toHaveLength(2);
  setBit(bitmap, 0);
  setBit(bitmap, 9);
  expect([...bitmap]).toEqual([1, 2]);
  expect(hasBit(bitmap, 9)).toBe(true);
  expect(hasBit(bitmap, 8)).toBe(false);
  expect(hasBit(bitmap, 1000)).toBe(false);
});

test("bits are counted as they were set", () => {
  assert(
    property(array(boolean(), { maxLength: 70 }), (bits) => {
      const bitmap = newBitmap(bits.length);
      for (const [index, bit] of bits.entries()) if (bit) setBit(bitmap, index);
      expect(bits.map((_bit, index) => hasBit(bitmap, index))).toEqual(bits);
      expect(countBits(bitmap, bits.length)).toBe(bits.filter(Boolean).length);
      const gap = bits.indexOf(false);
      expect(leadingBits(bitmap, bits.length)).toBe(gap === -1 ? bits.length : gap);
    }),
  );
});

test("classes have the numbers of the record header", () => {
  expect([classNumber("kv"), classNumber("ssm")]).toEqual([1, 2]);
  expect([className(1), className(2)]).toEqual(["kv", "ssm"]);
  expect(() => className(3)).toThrow("record class 3: expected 1 (kv) or 2 (ssm)");
});

test("statuses have the names and numbers of the proto", () => {
  const proto = readFileSync(new URL("../../proto/tierkv.proto", import.meta.url), "utf8");
  const rows = [...proto.matchAll(/ITEM_STATUS_(\w+) = (\d+)/g)];
  expect(Object.fromEntries(rows.map(([, name, number]) => [name, Number(number)]))).toEqual(
    ItemStatus,
  );
  expect(statusName(ItemStatus.OVER_BUDGET)).toBe("over_budget");
  expect(statusName(200)).toBe("unknown");
});

test("bits are counted, and a run ends, as bit by bit", () => {
  const full = Buffer.alloc(2, 0xff);
  expect([runEnd(full, 0, 11), runEnd(full, 3, 16), countBits(full, 11)]).toEqual([11, 16, 11]);
  const bitmaps = uint8Array({ maxLength: 6 }).map((bytes) =>
    // Whole bytes are frequent in answers, and have a path of their own.
    bytes.map((byte) => (byte % 3 === 0 ? 0xff : byte)),
  );
  const index = integer({ min: 0, max: 60 });
  assert(
    property(bitmaps, index, index, (bitmap, first, count) => {
      const bits = Array.from({ length: count }, (_, at) => hasBit(bitmap, at));
      expect(countBits(bitmap, count)).toBe(bits.filter(Boolean).length);
      const gap = bits.findIndex((bit, at) => at >= first && !bit);
      expect(runEnd(bitmap, first, count)).toBe(first >= count ? first : gap < 0 ? count : gap);
    }),
  );
});
