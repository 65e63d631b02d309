// Owns the proof that numbers and tables read well.
import fc from "fast-check";
import { expect, test } from "vitest";
import { showBytes, showMs, showShare, table } from "../../src/base/text.ts";

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1000, "1.0 kB"],
  [24e9, "24.0 GB"],
  [123_456_789, "123 MB"],
  [5e15, "5000 TB"],
])("%i bytes are %s", (bytes, text) => {
  expect(showBytes(bytes)).toBe(text);
});

test.each([
  [0.512, "0.51 ms"],
  [12.34, "12.3 ms"],
  [450.4, "450 ms"],
  [4100, "4.1 s"],
  [12_345, "12 s"],
  [4_070_194.1, "68 min"],
  [9_000_000, "2.5 h"],
  [9.999, "10.0 ms"],
  [999.7, "1.0 s"],
  [99_700, "1.7 min"],
  [1_000_000_000, "12 days"],
  [1e15, "years"],
  [Infinity, "years"],
])("%d ms are %s", (ms, text) => {
  expect(showMs(ms)).toBe(text);
});

test("no duration has more than four characters before its unit, and a longer one never reads as shorter", () => {
  const units: Record<string, number> = { ms: 1, s: 1000, min: 60_000, h: 3_600_000, days: 864e5 };
  const shown = (ms: number): number => {
    const text = showMs(ms);
    if (text === "years") return Infinity;
    const [, number = "", unit = ""] = /^([\d.]{1,4}) (ms|s|min|h|days)$/.exec(text) ?? [];
    expect(number, `${ms} as ${text}`).not.toBe("");
    return Number(number) * units[unit]!;
  };
  const any = fc.double({ min: -4, max: 14, noNaN: true }).map((power) => 10 ** power);
  fc.assert(
    fc.property(any, any, (one, other) => {
      expect(shown(Math.min(one, other))).toBeLessThanOrEqual(shown(Math.max(one, other)));
    }),
    { numRuns: 2000, examples: [[359_600_000, 359_900_000]] },
  );
});

test("a share is per cent", () => {
  expect(showShare(0.987)).toBe("98.7 %");
});

test("columns are as wide as their widest cell, without white space at the end", () => {
  expect(
    table([
      ["a", "bb"],
      ["ccc", "d"],
      ["e", ""],
    ]),
  ).toEqual(["a    bb", "ccc  d", "e"]);
});
