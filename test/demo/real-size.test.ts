// Owns the proof that the demo's act at a real size is refused where memory does not do.
import { expect, test } from "vitest";
import { checkMemory } from "../../src/demo/real-size.ts";
import { DEMO_REAL_MEMORY_BYTES } from "../../src/limits-tools.ts";

test("less memory than the act takes is refused with both figures and the way out", () => {
  expect(() => checkMemory(DEMO_REAL_MEMORY_BYTES)).not.toThrow();
  expect(() => checkMemory(3e9)).toThrow(
    /--real-size needs 12\.9 GB of memory, 3\.0 GB are free; run the demo without it/,
  );
});
