// Owns the proof of the judgement of the trained model's answers.
import { expect, test } from "vitest";
import type { Reading } from "../../src/demo/reading.ts";
import { readingLines, readingProblems } from "../../src/demo/reading.ts";

function reading(codec: Reading["codec"], tokensAlike = 48): Reading {
  const isRestored = codec !== null;
  return {
    codec,
    promptTokens: 790,
    restoredTokens: isRestored ? 768 : 0,
    fetchedBytes: isRestored ? 1_000_000 : 0,
    text: "return\nself",
    tokens: 48,
    tokensAlike,
  };
}

test("each answer stands in one line with how much of it is the same", () => {
  const lines = readingLines([reading(null), reading("raw"), reading("int8", 5)]);
  expect(lines[2]).toBe('  computed           "return\\nself"');
  expect(lines[3]).toMatch(/^ {2}restored +"return\\nself" \(the same 48 tokens, 1.0 MB moved\)$/);
  expect(lines[4]).toMatch(/^ {2}restored as INT8 +"return\\nself" \(first 5 of 48 tokens, /);
});

test("an exact restore must say the same, INT8 may differ, and both must be restored", () => {
  expect(readingProblems([reading(null), reading("raw"), reading("int8", 5)])).toEqual([]);
  expect(readingProblems([reading("raw", 47)])).toEqual([
    "trained model, restored: its text differs from the computed",
  ]);
  expect(readingProblems([{ ...reading("int8"), restoredTokens: 0 }])).toEqual([
    "trained model, restored as INT8: nothing was restored",
  ]);
});
