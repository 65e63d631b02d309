// Owns the tests of splitting large requests into calls that a vault accepts.
import { describe, expect, test } from "vitest";
import { keyCount, PACKED_KEY_BYTES } from "../../src/base/block.ts";
import { splitKeys } from "../../src/client/split.ts";

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
