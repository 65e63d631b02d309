// Owns the proof that the demo's act at a real size is refused where memory does not do, and is as long as the machine is fast.
import { expect, test } from "vitest";
import { DEMO_REAL_MEMORY_BYTES, DEMO_REAL_WARMUP_CHARS } from "../../../src/base/limits/tools.ts";
import { checkMemory, realChars } from "../../../src/extras/demo/real-size.ts";
import { LONG_TEXT } from "../../../src/extras/demo/scenario.ts";

test("less memory than the act takes is refused with both figures and the way out", () => {
  expect(() => checkMemory(DEMO_REAL_MEMORY_BYTES)).not.toThrow();
  expect(() => checkMemory(3e9)).toThrow(
    /--real-size needs 12\.9 GB of memory, 3\.0 GB are free; run the demo without it/,
  );
});

test("a slow machine takes less of the text, a fast one all of it", () => {
  expect(realChars(1_000)).toBe(LONG_TEXT.length);
  expect(realChars(10_000)).toBe(3 * DEMO_REAL_WARMUP_CHARS);
  expect(realChars(1e6)).toBe(DEMO_REAL_WARMUP_CHARS);
});
