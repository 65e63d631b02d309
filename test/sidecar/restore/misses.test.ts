// Owns the proof that the reason for a missing window is not that of a block which is there.
import { expect, test } from "vitest";
import { HASH_BYTES, toNamespace } from "../../../src/base/block.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import type { LookupAnswer } from "../../../src/sidecar/restore/lookup-answer.ts";
import { whyMissing } from "../../../src/sidecar/restore/misses.ts";
import type { MissContext, NeededGroup } from "../../../src/sidecar/restore/misses.ts";

const BLOCKS = 8;
const TOKENS = 16;
const NAMESPACE = toNamespace(Buffer.alloc(32, 1));
const HASHES = Array.from({ length: BLOCKS }, (_none, index) => Buffer.alloc(HASH_BYTES, index));
/** The whole prompt, and windows of two blocks. */
const GROUPS = [0, 2].map((tail, group) => ({
  group,
  class: "kv",
  hashes: Buffer.concat(HASHES),
  from: 0,
  tokens: TOKENS,
  tail,
  tenant: 0,
})) as unknown as NeededGroup[];

/** `there`: indices of the window blocks that a vault holds; `stored`: of those that this sidecar stored once. */
function why(there: readonly number[], stored: readonly number[]): string | null {
  const bits = there.reduce((sum, index) => sum | (1 << index), 0);
  const held = [0xff, bits].map((one) => ({ held: Buffer.from([one]) }));
  const answer = { groups: held, silent: new Set() } as unknown as LookupAnswer;
  const keys = new Set(stored.map((index) => blockKey(NAMESPACE, 1, HASHES[index]!)));
  const missReason = (_namespace: unknown, _group: unknown, key: string): string =>
    keys.has(key) ? "evicted" : "never_stored";
  const context = {
    pools: { kv: { ownerInPeace: () => 0 } },
    gates: { kv: [{ state: "up" }] },
    outcomes: { missReason },
    tokens: 0,
  } as unknown as MissContext;
  return whyMissing(NAMESPACE, GROUPS, answer, context);
}

test("a window of which one block is there and the other was never stored is not evicted", () => {
  expect(why([5], [5])).toBe("never_stored");
});

test("a window's block that is gone is evicted, beside one that is there too", () => {
  expect(why([], [5])).toBe("evicted");
  expect(why([5], [4, 5])).toBe("evicted");
});
