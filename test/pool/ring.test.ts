// Owns the proof that the ring gives the owners of the published one, evenly, and moves few names when a node comes or goes.
import { readFileSync } from "node:fs";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Ring } from "../../src/pool/ring.ts";

const namesOf = (count: number): string[] =>
  Array.from({ length: count }, (_none, at) => `10.0.0.${at + 1}:50051`);
const ringOf = (names: readonly string[]): Ring<string> =>
  new Ring(names.map((name) => ({ name, node: name })));
const ownerOf = (ring: Ring<string>, id: string): string | undefined => [...ring.ownersOf(id)][0];
const IDS = Array.from({ length: 5000 }, (_none, at) => `seq-${at}`);

test("owners of 5,000 ids are those of the published ring with 100 virtual nodes", () => {
  const file = new URL("ring-owners.txt", import.meta.url);
  const golden = readFileSync(file, "utf8").replaceAll("\n", "");
  const names = namesOf(4);
  const ring = ringOf(names);
  expect(IDS.map((id) => names.indexOf(ownerOf(ring, id) ?? "")).join("")).toBe(golden);
});

test("owners do not depend on the order of the list, and one that comes or goes moves only what is its own", () => {
  const moved = fc.integer({ min: 2, max: 9 }).chain((count) =>
    fc.record({
      names: fc.constant(namesOf(count)),
      order: fc.shuffledSubarray(namesOf(count), { minLength: count, maxLength: count }),
      gone: fc.nat({ max: count - 1 }),
    }),
  );
  fc.assert(
    fc.property(moved, ({ names, order, gone }) => {
      const [ring, other] = [ringOf(names), ringOf(order)];
      const left = ringOf(names.filter((_name, at) => at !== gone));
      for (let n = 0; n < 200; n += 1) {
        const owners = [...ring.ownersOf(`id-${n}`)];
        expect([...other.ownersOf(`id-${n}`)]).toEqual(owners);
        expect(owners.toSorted()).toEqual(names.toSorted());
        const rest = owners.filter((name) => name !== names[gone]);
        expect([...left.ownersOf(`id-${n}`)]).toEqual(rest);
      }
    }),
    { numRuns: 30 },
  );
});

test.each([4, 8])(
  "of %i nodes one that goes moves 1/N + 2 points of the names at most",
  (count) => {
    const names = namesOf(count);
    const [before, after] = [ringOf(names), ringOf(names.slice(1))];
    const moved = IDS.filter((id) => ownerOf(before, id) !== ownerOf(after, id)).length;
    expect(moved / IDS.length).toBeLessThanOrEqual(1 / count + 0.02);
  },
);

/** Unlike nodes, as capacities are. */
const unlike = fc.array(fc.constantFrom(4, 8, 16, 24, 32, 64), { minLength: 3, maxLength: 7 });
const weighted = (weights: readonly number[]): Ring<number> =>
  new Ring(weights.map((weight, node) => ({ name: namesOf(7)[node]!, node, weight })));
const ownersOf = (ring: Ring<number>, ids: readonly string[] = IDS): number[] =>
  ids.map((id) => [...ring.ownersOf(id)][0]!);
/** Chance alone parts the 5,000 by some points where a node is small. */
const MANY = Array.from({ length: 30_000 }, (_none, at) => `run-${at}`);

test("nodes of unlike weights are filled alike, within 10 points where they are half full on average", () => {
  fc.assert(
    fc.property(unlike, (weights) => {
      fc.pre(new Set(weights).size > 1);
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      const owners = ownersOf(weighted(weights), MANY);
      const fills = weights.map((weight, node) => {
        const share = owners.filter((owner) => owner === node).length / MANY.length;
        return (0.5 * share * total) / weight;
      });
      expect(Math.max(...fills) - Math.min(...fills)).toBeLessThan(0.1);
    }),
    { numRuns: 8, seed: 22 },
  );
});

test("weights that are alike, whatever they are, give the ring without weights", () => {
  expect(ownersOf(weighted([8, 8, 8]))).toEqual(ownersOf(weighted([1, 1, 1])));
});

test("of unlike nodes one that comes takes its share, and all that moves is 3 points more at most", () => {
  fc.assert(
    fc.property(unlike, (weights) => {
      fc.pre(new Set(weights).size > 1 && weights.length < 7);
      const [before, after] = [ownersOf(weighted(weights)), ownersOf(weighted([...weights, 16]))];
      const moved = IDS.filter((_id, at) => before[at] !== after[at]).length / IDS.length;
      const share = 16 / (weights.reduce((sum, weight) => sum + weight, 0) + 16);
      expect(moved).toBeLessThan(share + 0.03);
    }),
    { numRuns: 8, seed: 22 },
  );
});
