// Owns the proof that a terminal which does not tell its size is still written to.
import { expect, onTestFinished, test } from "vitest";
import { lookOf } from "../../../src/cli/top/terminal.ts";

test.each([
  [0, 0, 80],
  [undefined, undefined, 80],
  [132, 43, 132],
])("a terminal of %s columns and %s rows", (columns, rows, expected) => {
  const { stdout } = process;
  const before = { columns: stdout.columns, rows: stdout.rows };
  onTestFinished(() => void Object.assign(stdout, before));
  Object.assign(stdout, { columns, rows });
  expect(lookOf(true).columns).toBe(expected);
});
