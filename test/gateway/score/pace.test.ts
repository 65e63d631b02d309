// Owns the proof that an engine's pace is learned from prompts that were alone, and that what waits adds up.
import { expect, test } from "vitest";
import { Pace } from "../../../src/gateway/score/pace.ts";
import { GATEWAY_PREFILL_TOKENS_PER_S } from "../../../src/limits-gateway.ts";

/** So many that no pause of the machine matters. */
const MANY = 1e9;

test("what waits adds up, and goes with its first byte or its end", () => {
  const pace = new Pace();
  const oneMs = (MANY / GATEWAY_PREFILL_TOKENS_PER_S) * 1000;
  const [first, second] = [pace.sent(0, MANY), pace.sent(0, MANY)];
  expect(pace.queueMs() / oneMs).toBeCloseTo(2, 2);
  expect(pace.prompts).toBe(2);
  pace.begun(second, true);
  expect(pace.queueMs() / oneMs).toBeCloseTo(1, 2);
  pace.left(first);
  expect([pace.queueMs(), pace.prompts]).toEqual([0, 0]);
});

test("only a stream that was computed alone says how fast the engine is", () => {
  const pace = new Pace();
  const before = pace.computeMs(0, MANY);
  for (let n = 0; n < 3; n += 1) {
    const [one, other] = [pace.sent(0, 1000), pace.sent(0, 1000)];
    pace.begun(one, true);
    pace.begun(other, true);
    pace.begun(pace.sent(0, 1000), false);
  }
  expect(pace.computeMs(0, MANY)).toBe(before);
  for (let n = 0; n < 3; n += 1) pace.begun(pace.sent(0, 1000), true);
  expect(pace.computeMs(0, MANY)).not.toBe(before);
});
