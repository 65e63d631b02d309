// Owns the proof that the index's tables hold what a map would, through growth, removal and names that meet.
import fc from "fast-check";
import { expect, test } from "vitest";
import { BitTable, NameTable } from "../../../src/gateway/index/tables.ts";
import { Dice, testSeed } from "../../faults/lib/random.ts";

const STEPS = 20_000;

test("engines by block, as a map has them", () => {
  const dice = new Dice(testSeed());
  const table = new BitTable();
  const map = new Map<number, number>();
  // Many that want the same place: their low bits are equal.
  const nameOf = (): number => 1 + dice.below(3000) * (dice.below(2) === 0 ? 2 ** 21 : 1);
  for (let step = 0; step < STEPS; step += 1) {
    const name = nameOf();
    const bits = dice.below(3) === 0 ? 0 : 2 ** dice.below(32);
    table.set(name, bits);
    if (bits === 0) map.delete(name);
    else map.set(name, bits);
    const other = nameOf();
    expect(table.get(other)).toBe(map.get(other) ?? 0);
  }
  expect(table.size).toBe(map.size);
  for (const [name, bits] of map) expect(table.get(name)).toBe(bits);
});

test("names by hash, as a map has them and in its order", () => {
  const dice = new Dice(testSeed());
  const table = new NameTable();
  const map = new Map<bigint, number>();
  const hashOf = (): bigint => BigInt(dice.below(4000)) << BigInt(dice.below(3) * 22);
  for (let step = 0; step < STEPS; step += 1) {
    const hash = hashOf();
    const what = dice.below(20);
    if (what < 11) {
      table.set(hash, step + 1);
      map.set(hash, step + 1);
    } else if (what < 18) {
      expect(table.delete(hash)).toBe(map.get(hash) ?? 0);
      map.delete(hash);
    } else {
      const [oldest] = map;
      expect(table.shift()).toBe(oldest?.[1] ?? 0);
      if (oldest !== undefined) map.delete(oldest[0]);
    }
    expect(table.get(hash)).toBe(map.get(hash) ?? 0);
    if (step % 5000 === 0) expect([...table.entries()]).toEqual([...map]);
  }
  expect(table.size).toBe(map.size);
  expect([...table.entries()]).toEqual([...map]);
  table.clear();
  expect([table.size, table.get(1n), table.shift()]).toEqual([0, 0, 0]);
});

test("all of 64 bits count", () => {
  const hash = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
  fc.assert(
    fc.property(fc.uniqueArray(hash, { minLength: 1, maxLength: 50 }), (hashes) => {
      const table = new NameTable();
      for (const [at, one] of hashes.entries()) table.set(one, at + 1);
      expect(hashes.map((one) => table.get(one))).toEqual(hashes.map((_one, at) => at + 1));
      for (const one of hashes)
        expect(table.get(one ^ (1n << 63n))).toBe(1 + hashes.indexOf(one ^ (1n << 63n)));
    }),
    { numRuns: 300, seed: testSeed() },
  );
});

test("what is walked through stays as it was", () => {
  const table = new NameTable();
  for (let at = 1; at <= 2000; at += 1) table.set(BigInt(at), at);
  let seen = 0;
  for (const [hash, name] of table.entries()) {
    seen += 1;
    expect(name).toBe(Number(hash));
    table.delete(BigInt(2001 - seen));
    table.set(BigInt(10_000 + seen), 1);
  }
  expect(seen).toBe(2000);
});
