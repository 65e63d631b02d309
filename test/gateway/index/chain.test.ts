// Owns the proof that names of blocks tell apart what engines tell apart, and do not meet by chance.
import { expect, test } from "vitest";
import { nameOf, namesOf, ROOT } from "../../../src/gateway/index/chain.ts";

test("a name depends on all before it, on each token, on adapter and salt", () => {
  const tokens = [1, 2, 3, 4, 5, 6];
  const names = namesOf(tokens, 2, [], null);
  expect(names).toHaveLength(3);
  expect(nameOf(nameOf(ROOT, [1, 2], []), [3, 4], [])).toBe(names[1]);
  const others = [
    namesOf([9, 2, 3, 4, 5, 6], 2, [], null),
    namesOf([1, 2, 4, 3, 5, 6], 2, [], null),
    namesOf(tokens, 2, ["adapter"], null),
    namesOf(tokens, 2, [], "salt"),
    namesOf(tokens, 2, [], "tals"),
    namesOf(tokens, 2, ["sa"], "lt"),
    namesOf(tokens, 3, [], null),
  ];
  const lasts = [names, ...others].map((all) => all.at(-1));
  expect(new Set(lasts).size).toBe(lasts.length);
  expect(namesOf([1, 2, 3], 2, [], null)).toEqual(names.slice(0, 1));
});

test("names of a million blocks that differ in a bit or two are a million", () => {
  const names = new Set<number>();
  for (let n = 0; n < 1_000_000; n += 1) names.add(nameOf(n % 3, [n & 1023, 7, n >> 10, 7], []));
  expect(names.size).toBe(1_000_000);
  for (const name of names) if (!Number.isSafeInteger(name) || name < 0) throw new Error(`${name}`);
});
