// Owns the proof of the demo's choices: how long the text is, and what a starting engine is said to do.
import { expect, test } from "vitest";
import {
  DEMO_PROMPT_CHARS_MAX,
  DEMO_PROMPT_CHARS_MIN,
  DEMO_WARMUP_CHARS,
} from "../../../src/base/limits/general.ts";
import { enginePhase, LONG_TEXT, promptChars } from "../../../src/extras/demo/scenario.ts";

test("the prompt takes about the time asked for, within its limits", () => {
  expect(promptChars(1_000, 3_000, 15_000)).toBe(5_000);
  expect(promptChars(1_000, 60_000, 15_000)).toBe(DEMO_PROMPT_CHARS_MIN);
  expect(promptChars(1_000, 10, 15_000)).toBe(DEMO_PROMPT_CHARS_MAX);
});

test("the text is long enough for the longest prompt and three warm-ups, and never repeats a block", () => {
  expect(LONG_TEXT.length).toBeGreaterThanOrEqual(DEMO_PROMPT_CHARS_MAX + 3 * DEMO_WARMUP_CHARS);
  // One character is one token only for ASCII.
  expect(LONG_TEXT).toMatch(/^[\n -~]+$/);
  const blocks = LONG_TEXT.match(/[^]{128}/g) ?? [];
  expect(new Set(blocks).size).toBe(blocks.length);
});

test("the phase is the last one the log speaks of", () => {
  expect(enginePhase("")).toBe("importing vLLM");
  expect(enginePhase("non-default args: {}\nResolved architecture: X")).toBe(
    "starting the engine core",
  );
  expect(enginePhase("Starting to load model\nnon-default args")).toBe("loading the model");
});
