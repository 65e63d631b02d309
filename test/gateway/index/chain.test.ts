// Owns the proof that names of blocks tell apart what engines tell apart, and do not meet by chance.
import { expect, test } from "vitest";
import { nameOf, namesOf, newSeeds, ROOT } from "../../../src/gateway/index/chain.ts";

const SEEDS = newSeeds();

test("a name depends on all before it, on each token, on adapter and salt", () => {
  const tokens = [1, 2, 3, 4, 5, 6];
  const names = namesOf(SEEDS, tokens, 2, [], null);
  expect(names).toHaveLength(3);
  expect(nameOf(SEEDS, nameOf(SEEDS, ROOT, [1, 2], []), [3, 4], [])).toBe(names[1]);
  const others = [
    namesOf(SEEDS, [9, 2, 3, 4, 5, 6], 2, [], null),
    namesOf(SEEDS, [1, 2, 4, 3, 5, 6], 2, [], null),
    namesOf(SEEDS, tokens, 2, ["adapter"], null),
    namesOf(SEEDS, tokens, 2, [], "salt"),
    namesOf(SEEDS, tokens, 2, [], "tals"),
    namesOf(SEEDS, tokens, 2, ["sa"], "lt"),
    namesOf(SEEDS, tokens, 3, [], null),
    namesOf(newSeeds(), tokens, 2, [], null),
  ];
  const lasts = [names, ...others].map((all) => all.at(-1));
  expect(new Set(lasts).size).toBe(lasts.length);
  expect(namesOf(SEEDS, [1, 2, 3], 2, [], null)).toEqual(names.slice(0, 1));
});

test("names of a million blocks that differ in a bit or two are a million", () => {
  const names = new Set<number>();
  for (let n = 0; n < 1_000_000; n += 1)
    names.add(nameOf(SEEDS, n % 3, [n & 1023, 7, n >> 10, 7], []));
  expect(names.size).toBe(1_000_000);
  for (const name of names) if (!Number.isSafeInteger(name) || name < 0) throw new Error(`${name}`);
});
