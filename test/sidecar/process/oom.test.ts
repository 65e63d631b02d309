// Owns the proof that a sidecar puts itself before engines in the kernel's choice, where there is one.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { goBeforeEngines } from "../../../src/sidecar/process/oom.ts";
import { testDirectory } from "../../support/sidecars.ts";

test.each([
  ["0", 1000],
  // What a pod gives all its processes.
  ["986", 1000],
  ["-99", 901],
])("F17 a score of %s becomes %i", (before, after) => {
  const path = join(testDirectory(), "oom_score_adj");
  writeFileSync(path, `${before}\n`);
  expect(goBeforeEngines(path)).toBe(after);
  expect(Number(readFileSync(path, "utf8"))).toBe(after);
});

test("a system without scores is left alone", () => {
  expect(goBeforeEngines(join(testDirectory(), "none"))).toBe(null);
});
