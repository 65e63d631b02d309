// Owns the proof of the index's own rules: unknown parents, windows, its bound, and guesses.
import { expect, test } from "vitest";
import type { KvEvent } from "../../../src/gateway/events/batch.ts";
import { namesOf } from "../../../src/gateway/index/chain.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";

const stored = (hash: bigint, parent: bigint | null, tokens: number[], group = 0): KvEvent => ({
  kind: "stored",
  parent,
  blockSize: 2,
  blocks: [{ hash, tokens, extra: [] }],
  group,
});
const removed = (hash: bigint, group = 0): KvEvent => ({ kind: "removed", hashes: [hash], group });
const NAMES = namesOf([1, 2, 3, 4, 5, 6], 2, [], null);

function index(engines = 2, blocksMax = 100): BlockIndex {
  const made = new BlockIndex(engines, blocksMax);
  for (let at = 0; at < engines; at += 1) made.trust(at, true);
  return made;
}

test("the longest prefix of each engine, and none past a hole", () => {
  const known = index();
  for (const event of [stored(1n, null, [1, 2]), stored(2n, 1n, [3, 4]), stored(3n, 2n, [5, 6])]) {
    known.apply(0, event);
  }
  known.apply(1, stored(7n, null, [1, 2]));
  expect(known.prefixes(NAMES)).toEqual([3, 1]);
  known.apply(0, removed(2n));
  expect(known.prefixes(NAMES)).toEqual([1, 1]);
  known.apply(0, { kind: "cleared" });
  expect(known.prefixes(NAMES)).toEqual([0, 1]);
  known.trust(1, false);
  expect(known.prefixes(NAMES)).toEqual([0, 0]);
});

test("what one engine lacks is not made up for by another", () => {
  const known = index();
  for (const event of [stored(1n, null, [1, 2]), stored(2n, 1n, [3, 4]), stored(3n, 2n, [5, 6])]) {
    known.apply(0, event);
  }
  known.apply(0, removed(2n));
  known.apply(1, stored(7n, null, [1, 2]));
  known.apply(1, stored(8n, 7n, [3, 4]));
  expect(known.prefixes(NAMES)).toEqual([1, 2]);
  expect(known.prefixes([])).toEqual([0, 0]);
});

test("the 32nd engine is told apart", () => {
  const known = index(32);
  known.apply(31, stored(1n, null, [1, 2]));
  expect(known.prefixes(NAMES)[31]).toBe(1);
  expect(known.prefixes(NAMES)[0]).toBe(0);
  known.apply(31, removed(1n));
  expect(known.prefixes(NAMES)[31]).toBe(0);
});

test("a block whose parent was never told of is not known", () => {
  const known = index();
  known.apply(0, stored(2n, 1n, [3, 4]));
  expect([known.blocks(0), known.orphans(0)]).toEqual([0, 1]);
});

test("a removal in a group of windows takes nothing away", () => {
  const known = index();
  known.apply(0, stored(1n, null, [1, 2], 1));
  known.apply(0, removed(1n, 0));
  expect(known.prefixes(NAMES)).toEqual([1, 0]);
  known.apply(0, removed(1n, 1));
  expect(known.prefixes(NAMES)).toEqual([0, 0]);
});

test("above its bound the oldest blocks are forgotten", () => {
  const known = index(2, 6);
  for (let n = 0; n < 10; n += 1) known.apply(0, stored(BigInt(n), null, [n, n]));
  expect(known.blocks(0)).toBe(3);
  expect(known.prefixes(namesOf([9, 9], 2, [], null))).toEqual([1, 0]);
  expect(known.prefixes(namesOf([0, 0], 2, [], null))).toEqual([0, 0]);
});

test("what was just sent is believed for a while, also without trust", () => {
  const known = new BlockIndex(2);
  known.guess(1, NAMES);
  expect(known.prefixes(NAMES)).toEqual([0, 3]);
});
