// Owns the proof that an engine's pace is learned from prompts that were alone, and that what waits adds up.
import { expect, onTestFinished, test, vi } from "vitest";
import { Prefill } from "../../../src/cost/prefill.ts";
import { costOf, Pace } from "../../../src/gateway/score/pace.ts";
import type { Computing } from "../../../src/gateway/score/pace.ts";
import { GATEWAY_PACE_SAMPLES, GATEWAY_PREFILL_TOKENS_PER_S } from "../../../src/limits-gateway.ts";

/** So many that no pause of the machine matters. */
const MANY = 1e9;

const cold = (pace: Pace, tokens: number): Computing => pace.sent({ tokens, held: 0, reach: 0 });

test("what waits adds up, and goes with its first byte or its end", () => {
  const pace = new Pace();
  const oneMs = (MANY / GATEWAY_PREFILL_TOKENS_PER_S) * 1000;
  const [first, second] = [cold(pace, MANY), cold(pace, MANY)];
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
    const [one, other] = [cold(pace, 1000), cold(pace, 1000)];
    pace.begun(one, true);
    pace.begun(other, true);
    pace.begun(cold(pace, 1000), false);
  }
  expect(pace.computeMs(0, MANY)).toBe(before);
  for (let n = 0; n < 3; n += 1) pace.begun(cold(pace, 1000), true);
  expect(pace.computeMs(0, MANY)).not.toBe(before);
});

/** Answers that begin after as many milliseconds as they say. */
function timed(): (pace: Pace, span: Computing["span"], ms: number) => void {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  return (pace, span, ms) => {
    const computing = pace.sent(span);
    vi.advanceTimersByTime(ms);
    pace.begun(computing, true);
  };
}

test("a pull from vaults is chosen until it was measured to take longer than computing", () => {
  const answer = timed();
  const pace = new Pace();
  for (let n = 1; n <= 6; n += 1) answer(pace, { tokens: 1000 * n, held: 0, reach: 0 }, 100 * n);
  const span = { tokens: 4000, held: 1000, reach: 3000 };
  expect(pace.wayOf(span).pulled).toBe(2000);
  // Its last 1,000 tokens are computed in 100 ms: what is above that was the pull.
  for (let n = 0; n < 20; n += 1) answer(pace, span, 100 + 40);
  expect(pace.pullMs(1000, 3000)).toBeCloseTo(40, 0);
  expect(costOf(pace.wayOf(span))).toBeGreaterThan(120);
  expect(costOf(pace.wayOf(span))).toBeLessThan(160);
  for (let n = 0; n < 40; n += 1) answer(pace, span, 100 + 900);
  expect(pace.wayOf(span).pulled).toBe(0);
  expect(pace.computeMs(0, 4000)).toBeCloseTo(400, -1);
});

test("what waits is computed while blocks are pulled: the longer of both counts", () => {
  const answer = timed();
  const pace = new Pace();
  for (let n = 1; n <= 6; n += 1) answer(pace, { tokens: 1000 * n, held: 0, reach: 0 }, 100 * n);
  const span = { tokens: 4000, held: 0, reach: 3000 };
  for (let n = 0; n < 20; n += 1) answer(pace, span, 100 + 40);
  cold(pace, 2000);
  expect(pace.wayOf(span).waitMs).toBe(pace.queueMs());
  expect(pace.queueMs()).toBeGreaterThan(pace.pullMs(0, 3000));
});

test("an engine that has answered little is believed to take what the others take, and one that lags holds up what waits", () => {
  const answer = timed();
  const usual = new Prefill();
  const [busy, idle] = [new Pace(usual), new Pace(usual)];
  // One more, because the first says nothing.
  for (let n = 1; n <= GATEWAY_PACE_SAMPLES + 1; n += 1) {
    const tokens = 100 * n;
    answer(busy, { tokens, held: 0, reach: 0 }, 10 * n);
  }
  expect(idle.computeMs(0, 2000)).toBeCloseTo(200, -1);
  // Of one length, which says nothing of others.
  for (let n = 0; n < 3; n += 1) answer(idle, { tokens: 1000, held: 0, reach: 0 }, 100);
  expect(idle.computeMs(0, 3000)).toBeCloseTo(300, -1);
  for (let n = 0; n <= GATEWAY_PACE_SAMPLES; n += 1) {
    answer(idle, { tokens: 100 * (n + 1), held: 0, reach: 0 }, 20 * (n + 1));
  }
  expect(idle.computeMs(0, 2000) / 400).toBeCloseTo(1, 1);
  const first = cold(busy, 1000);
  cold(busy, 1000);
  vi.advanceTimersByTime(500);
  // The first one should have been done long ago: the second one's time is still to come.
  expect(busy.queueMs()).toBeCloseTo(100, -1);
  busy.begun(first, true);
  vi.advanceTimersByTime(50);
  expect(busy.queueMs()).toBeCloseTo(50, -1);
});
