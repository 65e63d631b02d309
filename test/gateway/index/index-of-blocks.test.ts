// Owns the proof of the index's own rules: unknown parents, windows, its bound, and guesses.
import { expect, test } from "vitest";
import type { KvEvent, Tier } from "../../../src/gateway/events/batch.ts";
import { namesOf, newSeeds } from "../../../src/gateway/index/chain.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { GATEWAY_PRESSURE_BLOCKS } from "../../../src/limits/gateway.ts";

const stored = (
  hash: bigint,
  parent: bigint | null,
  tokens: number[],
  group = 0,
  tier: Tier = "gpu",
): KvEvent => ({
  kind: "stored",
  tier,
  parent,
  blockSize: 2,
  blocks: [{ hash, tokens, extra: [] }],
  group,
  adapter: null,
});
const removed = (hash: bigint, group = 0, tier: Tier = "gpu"): KvEvent => ({
  kind: "removed",
  tier,
  hashes: [hash],
  group,
});
const vaulted = (hash: bigint, parent: bigint | null, tokens: number[]): KvEvent =>
  stored(hash, parent, tokens, 0, "vault");
const SEEDS = newSeeds();
const NAMES = namesOf(SEEDS, [1, 2, 3, 4, 5, 6], 2, [], null);

function index(engines = 2, blocksMax = 100): BlockIndex {
  const made = new BlockIndex(engines, blocksMax, SEEDS);
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

test("a block with two copies is held until both are removed; in each group one is enough to break a prompt", () => {
  const known = index(1);
  known.apply(0, stored(1n, null, [1, 2]));
  known.apply(0, stored(1n, null, [1, 2]));
  known.apply(0, removed(1n));
  expect(known.prefixes(NAMES)).toEqual([1]);
  known.apply(0, removed(1n));
  expect(known.prefixes(NAMES)).toEqual([0]);
  for (const group of [0, 3]) known.apply(0, stored(1n, null, [1, 2], group));
  expect(known.prefixes(NAMES)).toEqual([1]);
  known.apply(0, removed(1n, 3));
  expect(known.prefixes(NAMES)).toEqual([0]);
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
  expect(known.blocks(0)).toBe(0);
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
  expect(known.prefixes(namesOf(SEEDS, [9, 9], 2, [], null))).toEqual([1, 0]);
  expect(known.prefixes(namesOf(SEEDS, [0, 0], 2, [], null))).toEqual([0, 0]);
});

test("what was just sent is believed for a while, also without trust", () => {
  const known = new BlockIndex(2, 100, SEEDS);
  known.guess(1, NAMES);
  expect(known.prefixes(NAMES)).toEqual([0, 3]);
});

const ALL: ReadonlySet<number> = new Set([0, 1, 2]);
const reach = (known: BlockIndex, peers = ALL): number[] =>
  known.reach(NAMES, known.prefixes(NAMES), peers);

test("an engine that told of vaults can pull what another one saved, behind its own blocks", () => {
  const known = index(3);
  known.apply(0, vaulted(1n, null, [1, 2]));
  known.apply(0, vaulted(2n, 1n, [3, 4]));
  expect([known.prefixes(NAMES), reach(known)]).toEqual([
    [0, 0, 0],
    [2, 0, 0],
  ]);
  known.apply(1, stored(7n, null, [1, 2]));
  expect(reach(known)).toEqual([2, 1, 0]);
  known.apply(1, vaulted(9n, null, [8, 8]));
  expect(reach(known)).toEqual([2, 2, 0]);
  // Engines of another model have nothing for each other.
  expect(reach(known, new Set([1, 2]))).toEqual([0, 1, 0]);
  known.apply(1, stored(8n, 7n, [3, 4]));
  known.apply(0, vaulted(3n, 2n, [5, 6]));
  known.apply(0, removed(1n, 0, "vault"));
  // What lies before its own blocks' end need not be in a vault.
  expect(reach(known)).toEqual([0, 3, 0]);
});

test("an engine that empties its memory leaves what vaults hold; one whose events are lost can pull nothing", () => {
  const known = index(3);
  for (const event of [stored(1n, null, [1, 2]), vaulted(1n, null, [1, 2])]) known.apply(0, event);
  known.apply(0, { kind: "cleared" });
  expect([known.blocks(0), known.blocks(0, "vault")]).toEqual([0, 1]);
  expect(reach(known)).toEqual([1, 0, 0]);
  known.apply(1, vaulted(9n, null, [8, 8]));
  known.trust(0, false);
  expect(reach(known)).toEqual([0, 0, 0]);
  known.trust(0, true);
  known.clear(1);
  expect(reach(known)).toEqual([1, 0, 0]);
});

test("blocks in vaults and its own share an engine's bound", () => {
  const known = index(2, 6);
  known.apply(0, vaulted(100n, null, [1, 2]));
  for (let n = 0; n < 10; n += 1) known.apply(0, stored(BigInt(n), null, [n, n]));
  expect([known.blocks(0), known.blocks(0, "vault")]).toEqual([2, 1]);
});

test("an engine is full where a block goes for each that comes; what vaults hold says nothing of that", () => {
  const known = index();
  for (let n = 0; n < 8; n += 1) known.apply(0, stored(BigInt(n), null, [n, n]));
  known.apply(0, vaulted(100n, null, [1, 2]));
  known.apply(0, removed(100n, 0, "vault"));
  expect(known.pressure(0)).toBe(0);
  for (let n = 0; n < 4; n += 1) known.apply(0, removed(BigInt(n)));
  expect(known.pressure(0)).toBe(0.5);
  for (let n = 0; n < 3 * GATEWAY_PRESSURE_BLOCKS; n += 1) {
    known.apply(0, stored(1000n + BigInt(n), null, [n, 1]));
    known.apply(0, removed(1000n + BigInt(n)));
  }
  expect(known.pressure(0)).toBeCloseTo(1, 2);
  expect(known.pressure(1)).toBe(0);
});
