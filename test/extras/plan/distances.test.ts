// Owns the proof that stack distances are those of an LRU memory, over repeated compaction.
import fc from "fast-check";
import { expect, test } from "vitest";
import { Distances } from "../../../src/extras/plan/distances.ts";

/** Tokens from the top of the stack down to the block, or Infinity. */
function slowly(stack: readonly number[], id: number, tokensOf: (id: number) => number): number {
  const at = stack.indexOf(id);
  if (at < 0) return Infinity;
  return stack.slice(0, at + 1).reduce((sum, one) => sum + tokensOf(one), 0);
}

test("of any sequence they are what a list of blocks in order of use says", () => {
  const tokensOf = (id: number): number => 1 + (id % 7);
  fc.assert(
    fc.property(fc.array(fc.nat(60), { minLength: 1200, maxLength: 3000, size: "max" }), (ids) => {
      const distances = new Distances();
      let stack: number[] = [];
      for (const id of ids) {
        expect(distances.of(id)).toBe(slowly(stack, id, tokensOf));
        distances.use(id, tokensOf(id));
        stack = [id, ...stack.filter((one) => one !== id)];
      }
      expect(distances.blocks).toBe(stack.length);
      expect(distances.tokens).toBe(stack.reduce((sum, one) => sum + tokensOf(one), 0));
    }),
    { numRuns: 5 },
  );
});

test("positions are used again: thousands of uses of few blocks", () => {
  const distances = new Distances();
  for (let use = 0; use < 10_000; use += 1) distances.use(use % 3, 10);
  expect([distances.of(0), distances.of(2), distances.of(1)]).toEqual([10, 20, 30]);
  expect(distances.tokens).toBe(30);
});
