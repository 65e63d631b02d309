// Owns the proof of what may go into the program: licences, origins, scripts; and that the real lock files hold to it.
import { describe, expect, test } from "vitest";
import {
  complaints,
  cratePackages,
  isAllowed,
  loosePins,
  nodePackages,
} from "../../.ci/lib/supply-chain.js";

const ALLOWED = new Set(["MIT", "ISC", "Apache-2.0", "Unicode-3.0"]);

describe("a licence", () => {
  test.each<[expression: string, isGood: boolean]>([
    ["MIT", true],
    ["GPL-3.0-only", false],
    ["", false],
    ["MIT OR GPL-3.0-only", true],
    ["MIT/Apache-2.0", true],
    ["Apache-2.0 AND ISC", true],
    ["Apache-2.0 AND GPL-3.0-only", false],
    ["(MIT OR GPL-2.0) AND Unicode-3.0", true],
    ["(GPL-2.0 OR AGPL-3.0) AND Unicode-3.0", false],
    ["Apache-2.0 WITH LLVM-exception OR GPL-2.0", true],
  ])("%s: %s", (expression, isGood) => {
    expect(isAllowed(expression, ALLOWED)).toBe(isGood);
  });
});

const GOOD = {
  ecosystem: "npm",
  name: "a",
  version: "1.0.0",
  licence: "MIT",
  isTool: false,
  integrity: "sha512-x",
  hasScript: false,
  isForeign: false,
};

test.each<[name: string, change: object, says: string]>([
  ["licence", { licence: "AGPL-3.0" }, "is not on the list"],
  ["licence of a tool only", { licence: "MPL-2.0" }, "is not on the list"],
  ["origin", { isForeign: true }, "does not come from the registry"],
  ["missing checksum", { integrity: "" }, "has no checksum"],
  ["script", { hasScript: true }, "wants to run a script"],
])("a package is refused for its %s", (_name, change, says) => {
  expect(complaints([GOOD])).toEqual([]);
  expect(complaints([{ ...GOOD, ...change }]).join()).toContain(says);
});

test("what the lock files name is as it must be", () => {
  const [node, crates] = [nodePackages(), cratePackages()];
  expect(node.length).toBeGreaterThan(50);
  expect(crates.length).toBeGreaterThan(20);
  expect(complaints([...node, ...crates])).toEqual([]);
  expect(loosePins()).toEqual([]);
});
