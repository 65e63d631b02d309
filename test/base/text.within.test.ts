// Owns the proof that a table wider than a terminal is shown row by row, within its columns, and nothing is lost.
import { expect, test } from "vitest";
import { showRecords, tableWithin } from "../../src/base/text.ts";

const ROWS = [
  ["target", "address", "state", "memory", "hit rate", "evicted"],
  ["kv_cold", "192.168.1.20:50051", "up", "1.2 GB of 24.0 GB", "98.0 %", "0"],
  ["ssm_cold", "192.168.1.21:50051", "DOWN", "-", "-", "-"],
];

test("a table that fits stays a table", () => {
  expect(tableWithin(80, ROWS)).toHaveLength(3);
  expect(tableWithin(Infinity, ROWS)[0]).toMatch(/^target +address +state/);
});

test("in a narrower terminal each row has lines of its own, without empty cells", () => {
  const lines = tableWithin(40, ROWS);
  expect(lines).toEqual([
    "kv_cold  192.168.1.20:50051",
    "  state up, memory 1.2 GB of 24.0 GB",
    "  hit rate 98.0 %, evicted 0",
    "ssm_cold  192.168.1.21:50051",
    "  state DOWN",
  ]);
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(40);
});

test("records on disk alone are shown beside those in memory", () => {
  expect([showRecords(0, 26), showRecords(4, null), showRecords(null, null)]).toEqual([
    "0, 26 on disk",
    "4",
    "-",
  ]);
});
