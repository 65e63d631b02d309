// Owns the proof that clients which lost a vault together do not return together.
import { expect, test, vi } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import { PROBE_MAX_MS, PROBE_MIN_MS } from "../../src/base/limits/general.ts";
import type * as Time from "../../src/base/time.ts";
import { Breaker } from "../../src/client/breaker.ts";

const { pauses } = vi.hoisted(() => ({ pauses: [] as number[] }));

// Waits are recorded, not made.
vi.mock("../../src/base/time.ts", async (importOriginal) => ({
  ...(await importOriginal<typeof Time>()),
  sleep: (ms: number) => {
    pauses.push(ms);
    return new Promise(() => {});
  },
}));

test("F34 clients that lost one vault together probe it spread over the whole pause", () => {
  const failure = new TierkvError("SYSTEM", { reason: "connect refused" });
  for (let client = 0; client < 400; client += 1) {
    const breaker = new Breaker({ probe: () => Promise.resolve(), onChange: () => {} });
    for (let failed = 0; failed < 5; failed += 1) breaker.failed(failure);
  }
  expect(pauses).toHaveLength(400);
  const span = PROBE_MAX_MS - PROBE_MIN_MS;
  const quarters = [0, 0, 0, 0];
  for (const pause of pauses) {
    expect(pause).toBeGreaterThanOrEqual(PROBE_MIN_MS);
    quarters[Math.floor(((pause - PROBE_MIN_MS) / span) * 4)]! += 1;
  }
  // A hundred each, within seven standard deviations.
  for (const count of quarters) expect(count).toBeGreaterThan(40);
});
