// Owns the proof that an engine's TTFT is learned from prompts that were alone, and that what waits adds up.
import { expect, onTestFinished, test, vi } from "vitest";
import {
  GATEWAY_PREFILL_SAMPLES,
  GATEWAY_PREFILL_TOKENS_PER_S,
} from "../../../src/base/limits/gateway.ts";
import { Prefill } from "../../../src/cost/prefill.ts";
import { costOf, TtftModel } from "../../../src/gateway/score/ttft-model.ts";
import type { Computing } from "../../../src/gateway/score/ttft-model.ts";

/** So many that no pause of the machine matters. */
const MANY = 1e9;

const cold = (ttft: TtftModel, tokens: number): Computing =>
  ttft.sent({ tokens, held: 0, reach: 0 });

test("what waits adds up, and goes with its first byte or its end", () => {
  const ttft = new TtftModel();
  const oneMs = (MANY / GATEWAY_PREFILL_TOKENS_PER_S) * 1000;
  const [first, second] = [cold(ttft, MANY), cold(ttft, MANY)];
  expect(ttft.queueMs() / oneMs).toBeCloseTo(2, 2);
  expect(ttft.prompts).toBe(2);
  ttft.begun(second, true);
  expect(ttft.queueMs() / oneMs).toBeCloseTo(1, 2);
  ttft.left(first);
  expect([ttft.queueMs(), ttft.prompts]).toEqual([0, 0]);
});

test("only a stream that was computed alone says how fast the engine is", () => {
  const ttft = new TtftModel();
  const before = ttft.computeMs(0, MANY);
  for (let n = 0; n < 3; n += 1) {
    const [one, other] = [cold(ttft, 1000), cold(ttft, 1000)];
    ttft.begun(one, true);
    ttft.begun(other, true);
    ttft.begun(cold(ttft, 1000), false);
  }
  expect(ttft.computeMs(0, MANY)).toBe(before);
  for (let n = 0; n < 3; n += 1) ttft.begun(cold(ttft, 1000), true);
  expect(ttft.computeMs(0, MANY)).not.toBe(before);
});

/** Answers that begin after as many milliseconds as they say. */
function timed(): (ttft: TtftModel, span: Computing["span"], ms: number) => void {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  return (ttft, span, ms) => {
    const computing = ttft.sent(span);
    vi.advanceTimersByTime(ms);
    ttft.begun(computing, true);
  };
}

test("a pull from vaults is chosen until it was measured to take longer than computing", () => {
  const answer = timed();
  const ttft = new TtftModel();
  for (let n = 1; n <= 6; n += 1) answer(ttft, { tokens: 1000 * n, held: 0, reach: 0 }, 100 * n);
  const span = { tokens: 4000, held: 1000, reach: 3000 };
  expect(ttft.partsOf(span).pulled).toBe(2000);
  // Its last 1,000 tokens are computed in 100 ms: what is above that was the pull.
  for (let n = 0; n < 20; n += 1) answer(ttft, span, 100 + 40);
  expect(ttft.pullMs(1000, 3000)).toBeCloseTo(40, -1);
  expect(costOf(ttft.partsOf(span))).toBeGreaterThan(120);
  expect(costOf(ttft.partsOf(span))).toBeLessThan(160);
  for (let n = 0; n < 40; n += 1) answer(ttft, span, 100 + 900);
  expect(ttft.partsOf(span).pulled).toBe(0);
  expect(ttft.computeMs(0, 4000)).toBeCloseTo(400, -1);
});

/** Whole answers of an engine that computes a token in 2.5 ms and decodes one in 100 ms. */
function whole(): (ttft: TtftModel, tokens: number, decoded: number) => number | null {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  return (ttft, tokens, decoded) => {
    const computing = cold(ttft, tokens);
    const ms = 2.5 * tokens + 100 * decoded;
    vi.advanceTimersByTime(ms);
    ttft.begun(computing, false);
    return ttft.answered(computing, ms, decoded);
  };
}

test("where nothing streams, whole answers of several lengths say when their first tokens came", () => {
  const answer = whole();
  const ttft = new TtftModel();
  for (let n = 0; n < 24; n += 1) answer(ttft, 500 + 400 * (n % 9), (n * 13) % 64);
  expect(ttft.computeMs(0, 3000) / 7500).toBeCloseTo(1, 1);
  expect(answer(ttft, 2000, 50)! / 5000).toBeCloseTo(1, 1);
});

test("whole answers of one length are divided between computing and decoding", () => {
  const answer = whole();
  const ttft = new TtftModel();
  for (let n = 0; n < 6; n += 1) answer(ttft, 3456, 64);
  const ratio = ttft.computeMs(0, 3456) / (2.5 * 3456);
  expect(ratio).toBeGreaterThan(0.5);
  expect(ratio).toBeLessThan(1.5);
});

test("a whole answer whose prompt pulled from vaults tells how long that took", () => {
  const answer = whole();
  const ttft = new TtftModel();
  for (let n = 0; n < 24; n += 1) answer(ttft, 500 + 400 * (n % 9), (n * 13) % 64);
  const span = { tokens: 4000, held: 0, reach: 3000 };
  for (let n = 0; n < 20; n += 1) {
    const computing = ttft.sent(span);
    const ms = 900 + 2500 + 100 * 20;
    vi.advanceTimersByTime(ms);
    ttft.begun(computing, false);
    ttft.answered(computing, ms, 20);
  }
  expect(ttft.pullMs(0, 3000) / 900).toBeCloseTo(1, 0);
});

test("what waits is computed while blocks are pulled: the longer of both counts", () => {
  const answer = timed();
  const ttft = new TtftModel();
  for (let n = 1; n <= 6; n += 1) answer(ttft, { tokens: 1000 * n, held: 0, reach: 0 }, 100 * n);
  const span = { tokens: 4000, held: 0, reach: 3000 };
  for (let n = 0; n < 20; n += 1) answer(ttft, span, 100 + 40);
  cold(ttft, 2000);
  expect(ttft.partsOf(span).waitMs).toBe(ttft.queueMs());
  expect(ttft.queueMs()).toBeGreaterThan(ttft.pullMs(0, 3000));
});

test("an engine that has answered little is believed to take what the others take, and one that lags holds up what waits", () => {
  const answer = timed();
  const usual = new Prefill();
  const [busy, idle] = [new TtftModel(usual), new TtftModel(usual)];
  // One more, because the first says nothing.
  for (let n = 1; n <= GATEWAY_PREFILL_SAMPLES + 1; n += 1) {
    const tokens = 100 * n;
    answer(busy, { tokens, held: 0, reach: 0 }, 10 * n);
  }
  expect(idle.computeMs(0, 2000)).toBeCloseTo(200, -1);
  // Of one length, which says nothing of others.
  for (let n = 0; n < 3; n += 1) answer(idle, { tokens: 1000, held: 0, reach: 0 }, 100);
  expect(idle.computeMs(0, 3000)).toBeCloseTo(300, -1);
  for (let n = 0; n <= GATEWAY_PREFILL_SAMPLES; n += 1) {
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
