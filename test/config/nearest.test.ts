// Owns the proof that a slip of the fingers finds its key, and that other words find none.
import { assert, property, string } from "fast-check";
import { expect, test } from "vitest";
import { editDistance, nearest } from "../../src/config/nearest.ts";

const KEYS = ["max_bytes", "listen", "socket", "arena_bytes", "kv_cold", "ssm_cold"];

test.each([
  ["max_byte", "max_bytes"],
  ["MaxBytes", "max_bytes"],
  ["lisen", "listen"],
  ["sokcet", "socket"],
  ["kvcold", "kv_cold"],
  ["arena", "arena_bytes"],
  ["listener", "listen"],
  ["max", null],
  ["port", null],
  ["persist_path", null],
  ["x".repeat(10_000), null],
])("%s", (word, key) => {
  expect(nearest(word, KEYS)).toBe(key);
});

test("the distance is a metric", () => {
  const word = string({ maxLength: 12 });
  assert(
    property(word, word, word, (a, b, c) => {
      expect(editDistance(a, a)).toBe(0);
      expect(editDistance(a, b)).toBe(editDistance(b, a));
      expect(editDistance(a, c)).toBeLessThanOrEqual(editDistance(a, b) + editDistance(b, c));
      expect(editDistance(a, "")).toBe(a.length);
    }),
  );
});
