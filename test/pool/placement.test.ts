// Owns the proof that every engine computes the same owners of a prompt's runs, and that a vault that is down moves its own alone.
import { createHash } from "node:crypto";
import fc from "fast-check";
import { expect, test } from "vitest";
import { HASH_BYTES } from "../../src/block.ts";
import { RUN_BLOCKS } from "../../src/limits-pool.ts";
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

test("all blocks of a run lie where its first one says, whatever part of the prompt is asked for", () => {
  fc.assert(
    fc.property(pool, ({ names, seed, blocks }) => {
      const placement = new Placement(names);
      const hashes = hashesOf(seed, blocks);
      const owners = placement.homesOf(hashes, false, nobody).owners;
      for (const [at, owner] of owners.entries()) {
        expect(owner).toBe(placement.homeOf(hashAt(hashes, anchorOf(at)), nobody).owner);
        expect(Math.floor(anchorOf(at) / RUN_BLOCKS)).toBe(Math.floor(at / RUN_BLOCKS));
      }
      const alone = placement.homesOf(hashes, true, nobody).owners;
      for (const [at, owner] of alone.entries()) {
        expect(owner).toBe(placement.homeOf(hashAt(hashes, at), nobody).owner);
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
        [...new Placement(list).homesOf(hashes, false, nobody).owners].map((owner) => list[owner]);
      expect(named(other)).toEqual(named(names));
    }),
  );
});

test("what a vault that is down owns goes to others, and nothing else moves", () => {
  fc.assert(
    fc.property(pool, fc.nat({ max: 7 }), ({ names, seed, blocks }, which) => {
      const placement = new Placement(names);
      const down = which % names.length;
      const hashes = hashesOf(seed, blocks);
      const before = placement.homesOf(hashes, false, nobody).owners;
      const after = placement.homesOf(hashes, false, (vault) => vault === down).owners;
      for (const [at, owner] of before.entries()) {
        if (owner === down) expect(after[at]).not.toBe(down);
        else expect(after[at]).toBe(owner);
      }
      expect([...placement.homesOf(hashes, false, () => true).owners]).toEqual([...before]);
    }),
  );
});

test("a vault alone owns everything, and nothing is hashed for it", () => {
  const placement = new Placement(["a:1"]);
  expect([...placement.homesOf(hashesOf(1, 40), false, nobody).owners]).toEqual(Array(40).fill(0));
  expect(placement.homeOf(Buffer.alloc(HASH_BYTES), () => true).owner).toBe(0);
});
