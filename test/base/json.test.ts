// Owns the proof that bad text is a value and not an exception, and that only an object has fields.
import { expect, test } from "vitest";
import { parseJson, parseObject } from "../../src/base/json.ts";

test("text that is not JSON is undefined, and null is null", () => {
  expect(["{", "", "1 2"].map(parseJson)).toEqual([undefined, undefined, undefined]);
  expect([parseJson("null"), parseJson("[1]")]).toEqual([null, [1]]);
});

test("only an object has fields", () => {
  expect(parseObject('{"a":1}')).toEqual({ a: 1 });
  expect(["[]", "null", '"a"', "1", "{"].map(parseObject)).toEqual(Array(5).fill(null));
});
