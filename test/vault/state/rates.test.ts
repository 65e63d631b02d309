// Owns the proof that a vault's rates cover recently moved bytes only.
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RATE_SAMPLE_MS, RATE_SPAN_MS } from "../../../src/base/limits/general.ts";
import { Rates } from "../../../src/vault/state/rates.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("rates are of the last seconds, and nothing when nothing moves", () => {
  const moved = { out: 1_000, in: 500 };
  const rates = new Rates(() => ({ ...moved }));
  expect(rates.perSecond).toEqual({ out: 0, in: 0 });
  moved.out += 4_000;
  moved.in += 2_000;
  vi.advanceTimersByTime(2_000);
  expect(rates.perSecond).toEqual({ out: 2_000, in: 1_000 });
  vi.advanceTimersByTime(RATE_SPAN_MS + RATE_SAMPLE_MS);
  expect(rates.perSecond).toEqual({ out: 0, in: 0 });
  rates.close();
  expect(vi.getTimerCount()).toBe(0);
});
