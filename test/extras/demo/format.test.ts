// Owns the proof of how the demo's numbers and table look.
import { expect, test } from "vitest";
import {
  showBytes,
  showCount,
  showRatio,
  showSeconds,
  table,
} from "../../../src/extras/demo/format.ts";

test("bytes have a decimal unit", () => {
  expect([0, 999, 1_500, 122_880_000, 2_400_000_000].map(showBytes)).toEqual([
    "0 B",
    "999 B",
    "1.5 kB",
    "122.9 MB",
    "2.4 GB",
  ]);
});

test("short times have two digits after the point, long ones one", () => {
  expect([216, 9_994, 14_960].map(showSeconds)).toEqual(["0.22 s", "9.99 s", "15.0 s"]);
});

test("counts have a comma every three digits", () => {
  expect([0, 999, 9_984, 1_234_567].map(showCount)).toEqual(["0", "999", "9,984", "1,234,567"]);
});

test("a ratio says how many times faster", () => {
  expect([showRatio(15_000, 250), showRatio(1_000, 1_000), showRatio(1_000, 4_000)]).toEqual([
    "60x",
    "1.0x",
    "0.3x",
  ]);
});

test("columns line up: the first to the left, the others to the right, a rule below the head", () => {
  expect(
    table([
      ["request", "TTFT"],
      ["cold", "14.9 s"],
      ["restored", "0.25 s"],
    ]),
  ).toEqual(["request      TTFT", "--------   ------", "cold       14.9 s", "restored   0.25 s"]);
});
