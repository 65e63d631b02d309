// Owns the proof that numbers and tables read well.
import { expect, test } from "vitest";
import { showBytes, showMs, showShare, table } from "../../src/cli/text.ts";

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

test("times and shares", () => {
  expect([showMs(0.512), showMs(12.34), showShare(0.987)]).toEqual([
    "0.51 ms",
    "12.3 ms",
    "98.7 %",
  ]);
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
