// Owns the proof that every engine computes the same owners of a prompt's runs, and that a vault that is down moves its own alone.
import { createHash } from "node:crypto";
import fc from "fast-check";
import { expect, test } from "vitest";
import { HASH_BYTES } from "../../src/base/block.ts";
import { RUN_BLOCKS } from "../../src/base/limits/pool.ts";
import { anchorOf, Placement } from "../../src/pool/placement.ts";

const hashesOf = (seed: number, blocks: number): Buffer =>
  Buffer.concat(
    Array.from({ length: blocks }, (_none, at) =>
      createHash("sha256").update(`${seed}:${at}`).digest(),
    ),
  );
const hashAt = (hashes: Buffer, at: number): Buffer =>
  hashes.subarray(at * HASH_BYTES, (at + 1) * HASH_BYTES);
const nobody = (): boolean => false;
const pool = fc.record({
  names: fc.uniqueArray(fc.stringMatching(/^[a-z]{1,8}:\d{4}$/), { minLength: 2, maxLength: 8 }),
  seed: fc.nat(),
  blocks: fc.integer({ min: 1, max: 100 }),
});

test("blocks of a run lie where its first one says, whatever part of the prompt is asked for; states where their own hash does", () => {
  fc.assert(
    fc.property(pool, ({ names, seed, blocks }) => {
      const placement = new Placement(names);
      const hashes = hashesOf(seed, blocks);
      const { owners, seconds } = placement.homesOf(hashes, nobody);
      for (const [at, owner] of owners.entries()) {
        const home = placement.homeOf(hashAt(hashes, anchorOf(at)), nobody, at);
        expect({ owner, second: seconds[at] }).toEqual(home);
        expect(home.second).not.toBe(owner);
        expect(Math.floor(anchorOf(at) / RUN_BLOCKS)).toBe(Math.floor(at / RUN_BLOCKS));
      }
      const whole = new Placement(names, undefined, "whole");
      for (const [at, owner] of whole.homesOf(hashes, nobody).owners.entries()) {
        expect(owner).toBe(whole.homeOf(hashAt(hashes, at), nobody).owner);
      }
    }),
  );
});

test("a list in another order names the same vaults", () => {
  fc.assert(
    fc.property(pool, ({ names, seed, blocks }) => {
      const other = names.toReversed();
      const hashes = hashesOf(seed, blocks);
      const named = (list: readonly string[]): (string | undefined)[] =>
        [...new Placement(list).homesOf(hashes, nobody).owners].map((owner) => list[owner]);
      expect(named(other)).toEqual(named(names));
    }),
  );
});

test("the same where costs are equal, because weights are far apart, and where the heavy one is down", () => {
  const [hashes, weightOf] = [
    hashesOf(1, 4 * RUN_BLOCKS),
    (name: string) => (name === "a" ? 1 : 0.001),
  ];
  const named = (list: readonly string[]): (string | undefined)[][] => {
    const placement = new Placement(list, list.map(weightOf));
    const { owners, seconds } = placement.homesOf(hashes, (vault) => list[vault] === "a");
    return [...owners].map((owner, at) => [list[owner], list[seconds[at]!]]);
  };
  expect(named(["c", "b", "a"])).toEqual(named(["a", "b", "c"]));
});

test("what a vault that is down owns goes to others, and nothing else moves", () => {
  fc.assert(
    fc.property(pool, fc.nat({ max: 7 }), ({ names, seed, blocks }, which) => {
      const placement = new Placement(names);
      const down = which % names.length;
      const hashes = hashesOf(seed, blocks);
      const before = placement.homesOf(hashes, nobody).owners;
      const after = placement.homesOf(hashes, (vault) => vault === down).owners;
      for (const [at, owner] of before.entries()) {
        if (owner === down) expect(after[at]).not.toBe(down);
        else expect(after[at]).toBe(owner);
      }
      expect([...placement.homesOf(hashes, () => true).owners]).toEqual([...before]);
    }),
  );
});

test("a vault alone owns everything, and nothing is hashed for it", () => {
  const placement = new Placement(["a:1"]);
  expect([...placement.homesOf(hashesOf(1, 40), nobody).owners]).toEqual(Array(40).fill(0));
  expect(placement.homeOf(Buffer.alloc(HASH_BYTES), () => true).owner).toBe(0);
});

test.each([
  [[1, 1], 0.93, 0.98],
  [[1, 1, 1], 0.85, 0.96],
  [[1, 1, 1, 1], 0.85, 0.95],
  [[1, 1, 1, 1, 1, 1, 1, 1], 0.75, 0.93],
  [[1, 1, 1, 1.1], 0.85, 0.95],
  [[2, 1], 0.9, 0.97],
  [[1, 1, 1, 0.1], 0.5, 0.8],
])(
  "vaults of weights %j bring 64 blocks at %f of the sum of their rates at least, 256 at %f",
  (weights, ...least) => {
    const names = weights.map((_weight, at) => `10.0.0.${at}:50051`);
    const placement = new Placement(names, weights);
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const rateOf = (owners: Uint8Array): number => {
      const counts = weights.map(() => 0);
      for (const owner of owners) counts[owner]! += 1;
      return owners.length / total / Math.max(...counts.map((count, at) => count / weights[at]!));
    };
    for (const [which, blocks] of [64, 256].entries()) {
      const rates = Array.from({ length: 51 }, (_none, seed) =>
        rateOf(placement.homesOf(hashesOf(seed, blocks), nobody).owners),
      );
      expect(rates.toSorted((a, b) => a - b)[25]).toBeGreaterThan(least[which]!);
    }
    for (const [vault, share] of placement.shares())
      expect(Math.abs(share - weights[vault]! / total)).toBeLessThan(0.02);
  },
);

test.each([[[1, 1, 1, 0.1]], [[64, 4, 8]], [[4, 8, 16, 24, 32, 64, 4]]])(
  "vaults of weights %j are filled alike, within 10 points where they are half full on average",
  (weights) => {
    const placement = new Placement(
      weights.map((_weight, at) => `10.0.0.${at}:50051`),
      weights,
    );
    // Most layouts: fewer part a small vault's fill by chance. Only the first hash of a run counts.
    const hashes = Buffer.alloc(256 * RUN_BLOCKS * HASH_BYTES);
    for (let at = 0; at < hashes.length; at += RUN_BLOCKS * HASH_BYTES) hashes.write(`${at}`, at);
    const { owners } = placement.homesOf(hashes, nobody, false);
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const counts = weights.map(() => 0);
    for (const owner of owners) counts[owner]! += 1;
    const fills = weights.map((weight, at) => (0.5 * counts[at]! * total) / owners.length / weight);
    expect(Math.max(...fills) - Math.min(...fills)).toBeLessThan(0.1);
  },
);

test.each([
  [2, 0.02],
  [3, 0.025],
  [4, 0.025],
  [5, 0.025],
  [8, 0.035],
])(
  "one that joins %i vaults takes its share, and what moves is %f more at most",
  (count, slack) => {
    const names = Array.from({ length: count + 1 }, (_none, at) => `10.0.0.${at}:50051`);
    const [before, after] = [names.slice(0, count), names].map((all) =>
      new Placement(all).samples(),
    );
    const moved = before!.filter((owner, at) => owner !== after![at]).length / before!.length;
    expect(moved).toBeGreaterThan(1 / (count + 1) - 0.02);
    expect(moved).toBeLessThan(1 / (count + 1) + slack);
  },
);
