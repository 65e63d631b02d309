// Owns the proof of what is compared between two answers, and of the sums.
import { expect, test } from "vitest";
import { divergence, likeness } from "../../../src/extras/fidelity/likeness.ts";
import type { Weighed } from "../../../src/extras/fidelity/likeness.ts";

const step = (...shares: number[]): Record<string, number> =>
  Object.fromEntries(shares.map((share, token) => [`token_id:${token}`, Math.log(share)]));

function answer(tokenIds: number[], share = 0.5): Weighed {
  return { tokenIds, steps: tokenIds.map(() => step(share, 0.25)) };
}

test("the divergence of a step counts what is named, and the rest as one", () => {
  expect(divergence(step(0.5, 0.25), step(0.5, 0.25))).toBe(0);
  const known = 0.5 * Math.log(0.5 / 0.25) + 0.25 * Math.log(0.25 / 0.5);
  expect(divergence(step(0.5, 0.25), step(0.25, 0.25))).toBeCloseTo(known, 12);
  // A token that only one of them names belongs to the rest.
  expect(divergence(step(0.5, 0.25), step(0.5))).toBeCloseTo(0, 12);
});

test("nothing is compared behind the token where two answers part", () => {
  const reference = answer([1, 2, 3, 4]);
  const sums = likeness([
    [reference, answer([1, 2, 3, 4])],
    [reference, answer([1, 9, 3, 4])],
  ]);
  expect(sums).toMatchObject({ answers: 2, same: 1, tokens: 6, top1: 5 / 6, kldMean: 0 });
});

test("a token that became half as likely doubles the perplexity", () => {
  const { perplexity } = likeness([[answer([1, 2]), answer([1, 2], 0.25)]]);
  expect(perplexity).toBeCloseTo(1, 12);
});
