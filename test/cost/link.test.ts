// A link expects answers as they came, believes what the core measures, and cuts batches accordingly. Rates: crates/core/tests/goodput.rs.
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { LINK_STALE_MS } from "../../src/base/limits/cost.ts";
import { Goodput } from "../../src/base/native.ts";
import { isStale, Link } from "../../src/cost/link.ts";
import { goodputOf } from "../support/goodput.ts";

beforeEach(() => void vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => void vi.useRealTimers());

describe("a link", () => {
  test("expects answers as they came, longer questions later", () => {
    const link = new Link();
    const unknown = [null, null, true];
    expect([link.roundTripMs(36), link.roundTripMaxMs(36), link.isUnasked]).toEqual(unknown);
    link.answered(36, 900);
    expect(link.roundTripMs(36)).toBeNull();
    for (let round = 0; round < 10; round += 1) {
      link.answered(36, 1);
      link.answered(36_000, 11);
    }
    expect(link.roundTripMs(36)).toBeCloseTo(1, 0);
    expect(link.roundTripMs(18_000)).toBeCloseTo(6, 0);
    expect(link.roundTripMaxMs(36)).toBeGreaterThan(1);
    expect(link.isUnasked).toBe(false);
  });

  test("batches are about a twentieth of a second long, within their bounds; saves tell of restores until one was measured", () => {
    const most = 16 * 2 ** 20;
    expect(new Link().batchBytes("down", most)).toBe(256 * 1024);
    const saved = new Link({ up: goodputOf(50e6) });
    expect(saved.restoreRate).toBe(50e6);
    expect(saved.batchBytes("down", most)).toBeCloseTo(2.5e6, -5);
    const restored = new Link({ up: goodputOf(50e6), down: goodputOf(1e10) });
    expect(restored.restoreRate).toBe(1e10);
    expect(restored.batchBytes("down", most)).toBe(most);
  });

  test("is stale before the first measurement, and when the last was long ago", () => {
    const flow = new Goodput();
    expect(isStale(flow)).toBe(true);
    flow.begin(0, false);
    flow.moved(100_000);
    flow.end(false, false);
    expect(isStale(flow)).toBe(false);
    expect(isStale(goodputOf(1, LINK_STALE_MS + 1))).toBe(true);
  });
});
