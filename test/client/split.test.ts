// Owns the tests of cutting large requests into calls that a vault accepts.
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { keyCount, PACKED_KEY_BYTES } from "../../src/block.ts";
import type { RecordClassNumber } from "../../src/block.ts";
import { splitBatch, splitKeys, splitPlan } from "../../src/client/split.ts";

function keys(count: number, fill: number): Buffer {
  return Buffer.alloc(count * PACKED_KEY_BYTES, fill);
}

describe("splitKeys", () => {
  test("parts join to the whole and none is too long", () => {
    const all = Buffer.concat([keys(8, 1), keys(8, 2), keys(3, 3)]);
    const parts = splitKeys(all, 8);
    expect(parts.map(keyCount)).toEqual([8, 8, 3]);
    expect(Buffer.concat(parts)).toEqual(all);
    expect(splitKeys(Buffer.alloc(0), 8)).toEqual([]);
  });
});

describe("splitPlan", () => {
  test("any plan keeps its order, its groups and its item numbers", () => {
    const segment = fc.record({ group: fc.nat(5), count: fc.nat(30) });
    fc.assert(
      fc.property(
        fc.array(segment, { maxLength: 8 }),
        fc.integer({ min: 1, max: 16 }),
        (plan, max) => {
          const segments = plan.map(({ group, count }, index) => ({
            recordClass: 1 as RecordClassNumber,
            group,
            keys: keys(count, index),
          }));
          const parts = splitPlan(segments, max);
          let items = 0;
          for (const part of parts) {
            expect(part.firstItem).toBe(items);
            const count = part.segments.reduce((sum, { keys: k }) => sum + keyCount(k), 0);
            expect(count).toBeGreaterThan(0);
            expect(count).toBeLessThanOrEqual(max);
            items += count;
          }
          const flat = (all: typeof segments): string[] =>
            all.flatMap((s) =>
              splitKeys(s.keys, 1).map((key) => `${s.group}:${key.toString("hex")}`),
            );
          expect(flat(parts.flatMap((part) => part.segments))).toEqual(flat(segments));
        },
      ),
    );
  });
});

describe("splitBatch", () => {
  test("bounded by items and bytes; an item above the bound stands alone", () => {
    expect(splitBatch([1, 1, 1, 1, 1], (n) => n, 2, 100)).toEqual([[1, 1], [1, 1], [1]]);
    expect(splitBatch([4, 5, 20, 1, 9], (n) => n, 100, 10)).toEqual([[4, 5], [20], [1, 9]]);
    expect(splitBatch([], (n: number) => n, 2, 10)).toEqual([]);
  });
});
