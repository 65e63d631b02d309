// Owns the proof that who has more than an even share of what waits, or may be shed, is given less time to a first token.
import { afterEach, expect, test, vi } from "vitest";
import { GATEWAY_FAIR_KEYS_MAX, GATEWAY_FAIR_MS } from "../../../src/base/limits/gateway.ts";
import type { Turn } from "../../../src/gateway/engines/queue.ts";
import { Throttle } from "../../../src/gateway/score/throttle.ts";

afterEach(() => void vi.useRealTimers());

const turn = (key: string, priority = 0, tokens = 1000): Turn => ({ key, priority, tokens });

test("a key alone has all, one that has more than its share half, and the other one all", () => {
  vi.useFakeTimers();
  const throttle = new Throttle();
  const paid = [throttle.sent(turn("a")), throttle.sent(turn("a"))];
  expect(throttle.patience(turn("a"))).toBe(1);
  expect(throttle.patience(turn("b"))).toBe(1);
  expect(throttle.patience(turn("a"))).toBe(0.5);
  expect(throttle.patience(turn("a", 1))).toBe(1);
  expect(throttle.patience(turn("a", -1))).toBe(0.25);
  expect(throttle.patience(turn("b", -1))).toBe(0.5);
  for (const pay of [...paid, ...paid]) pay();
  // Nothing waits, and a first request of each is even.
  throttle.sent(turn("b"));
  expect(throttle.patience(turn("a"))).toBe(1);
  vi.advanceTimersByTime(GATEWAY_FAIR_MS + 1);
  throttle.sent(turn("a"));
  throttle.sent(turn("a"));
  throttle.sent(turn("a"));
  expect(throttle.patience(turn("a"))).toBe(0.5);
});

test("a key that sends nothing any more takes no share, and names without number are forgotten", () => {
  vi.useFakeTimers();
  const throttle = new Throttle();
  throttle.patience(turn("b"));
  throttle.sent(turn("a"));
  expect(throttle.patience(turn("a"))).toBe(0.5);
  vi.advanceTimersByTime(GATEWAY_FAIR_MS + 1);
  expect(throttle.patience(turn("a"))).toBe(1);
  for (let n = 0; n < 2 * GATEWAY_FAIR_KEYS_MAX; n += 1) throttle.patience(turn(`k${n}`));
  // Of so many keys each has less than a request: the one that has some is over.
  expect(throttle.patience(turn("a", 0, 1))).toBe(0.5);
});
