// Owns the proof that what shares a parity record lies on distinct vaults, evenly, and that one vault's absence moves nothing of the others.
import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { RUN_BLOCKS } from "../../src/base/limits/pool.ts";
import { Placement } from "../../src/pool/placement.ts";
import { membersOf, widthOf } from "../../src/pool/stripes.ts";
import type { Stripe } from "../../src/pool/stripes.ts";

const RUNS = 250;
const anchorAt = (run: number): Buffer => createHash("sha256").update(`run ${run}`).digest();
const namesOf = (count: number): string[] =>
  Array.from({ length: count }, (_none, at) => `10.0.0.${at}:50051`);
const stripesOf = (count: number, down: number | null = null): Stripe[] => {
  const placement = new Placement(namesOf(count), undefined, "parity");
  return Array.from({ length: RUNS }, (_none, run) =>
    placement.stripeOf(anchorAt(run), (vault) => vault === down)!,
  );
};
const INDEXES = Array.from({ length: RUN_BLOCKS }, (_none, at) => at);

test("a parity record stands for two blocks from three vaults on, for four from five on, and all blocks of a run have one", () => {
  expect([1, 2, 3, 4, 5, 16].map(widthOf)).toEqual([0, 0, 2, 2, 4, 4]);
  for (const width of [2, 4]) {
    const groups = new Set(INDEXES.map((at) => membersOf(at, width).join()));
    expect(groups.size).toBe(RUN_BLOCKS / width);
    expect(
      [...groups].flatMap((group) => group.split(",").map(Number)).toSorted((a, b) => a - b),
    ).toEqual(INDEXES);
    for (const at of INDEXES)
      expect(membersOf(at + RUN_BLOCKS, width)).toEqual(
        membersOf(at, width).map((member) => member + RUN_BLOCKS),
      );
  }
  expect(
    new Placement(namesOf(2), undefined, "parity").stripeOf(anchorAt(0), () => false),
  ).toBeNull();
  expect(new Placement(namesOf(3)).stripeOf(anchorAt(0), () => false)).toBeNull();
});

test.each([3, 4, 5, 8])(
  "over %i vaults members and parity lie apart, and each vault has its share",
  (count) => {
    const width = widthOf(count);
    const blocks = Array.from({ length: count }, () => 0);
    const parities = [...blocks];
    let together = 0;
    for (const stripe of stripesOf(count)) {
      for (const index of INDEXES) {
        const owners = membersOf(index, width).map((at) => stripe.ownerOf(at));
        const parity = stripe.parityFor(index)!;
        const isApart = new Set([...owners, parity]).size === width + 1;
        if (!isApart || stripe.parityOf(index) !== parity) together += 1;
        blocks[stripe.ownerOf(index)]! += 1;
        parities[parity]! += 1;
      }
    }
    expect(together).toBe(0);
    for (const of of [...blocks, ...parities])
      expect(Math.abs(of / (RUNS * RUN_BLOCKS) - 1 / count)).toBeLessThan(0.012);
  },
);

test.each([3, 4, 5, 8])(
  "of %i vaults one that is down moves its own blocks only, and no parity is stored that would go with a member",
  (count) => {
    const width = widthOf(count);
    const wrong: string[] = [];
    const [whole, less] = [stripesOf(count), stripesOf(count, 1)];
    for (const [run, stripe] of whole.entries()) {
      for (const index of INDEXES) {
        const [was, now] = [stripe.ownerOf(index), less[run]!.ownerOf(index)];
        if (was === 1 ? now === 1 : now !== was) wrong.push(`block ${run} ${index}`);
        const parity = stripe.parityOf(index);
        if (parity !== 1 && less[run]!.parityOf(index) !== parity)
          wrong.push(`parity ${run} ${index}`);
        const stored = less[run]!.parityFor(index);
        const owners = membersOf(index, width).map((at) => less[run]!.ownerOf(at));
        const isApart = new Set([...owners, stored]).size === width + 1;
        // With one vault too few there is none.
        if (stored === null ? count > width + 1 : !isApart) wrong.push(`stored ${run} ${index}`);
      }
    }
    expect(wrong).toEqual([]);
  },
);

test("where a vault leaves, few blocks of the others change owner", () => {
  const [before, after] = [stripesOf(8), stripesOf(7)];
  let moved = 0;
  for (const [run, stripe] of before.entries())
    for (const index of INDEXES)
      moved += Number(
        stripe.ownerOf(index) !== 7 && stripe.ownerOf(index) !== after[run]!.ownerOf(index),
      );
  expect(moved / (RUNS * RUN_BLOCKS)).toBeLessThan(0.06);
});
