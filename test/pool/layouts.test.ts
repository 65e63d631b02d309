// Owns the proof that layouts are made once for each list of vaults, and that what is kept of lists is bounded.
import { expect, test } from "vitest";
import { LAYOUT_LISTS_MAX } from "../../src/base/limits/pool.ts";
import type { Member } from "../../src/pool/layout.ts";
import { layoutsOf } from "../../src/pool/layouts.ts";

const membersOf = (list: number): Member[] =>
  [0, 1, 2].map((node) => ({ name: `${list}-${node}:1`, node, weight: 1 }));

test("a list that is given again has the layouts that it had, until others were given since", () => {
  const first = layoutsOf(membersOf(0));
  const made = first(5);
  expect(first(5)).toBe(made);
  expect(first(6)).not.toEqual(made);
  for (let list = 1; list < LAYOUT_LISTS_MAX; list += 1) layoutsOf(membersOf(list));
  expect(layoutsOf(membersOf(0))(5)).toBe(made);
  for (let list = 1; list < LAYOUT_LISTS_MAX; list += 1) layoutsOf(membersOf(100 + list));
  expect(layoutsOf(membersOf(0))(5)).toBe(made);
  for (let list = 0; list < LAYOUT_LISTS_MAX; list += 1) layoutsOf(membersOf(200 + list));
  const again = layoutsOf(membersOf(0))(5);
  expect(again).not.toBe(made);
  expect(again).toEqual(made);
});

test("another order of the given list, and another weight have layouts of their own", () => {
  const made = layoutsOf(membersOf(0))(5);
  const nodes = membersOf(0).map((member, at) => ({ ...member, node: 2 - at }));
  const weights = membersOf(0).map((member, at) => ({ ...member, weight: 1 + at }));
  for (const other of [layoutsOf(nodes)(5), layoutsOf(weights)(5)]) expect(other).not.toEqual(made);
});
