// Owns the tests of the circuit breaker: when it opens, how it probes, when it closes.
import { afterEach, describe, expect, test } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import { PROBE_MAX_MS, PROBE_MIN_MS } from "../../src/base/limits/general.ts";
import { Breaker } from "../../src/client/breaker.ts";
import { until } from "../support/vaults.ts";

const FAILURE = new TierkvError("SYSTEM", { reason: "connect refused" });
let breaker: Breaker;
afterEach(() => breaker.close());

function newBreaker(probe: () => Promise<void> = () => Promise.resolve()): string[] {
  const changes: string[] = [];
  breaker = new Breaker({ probe, onChange: (state) => changes.push(state) });
  return changes;
}

describe("Breaker", () => {
  test("one failure is forgiven, two in a row open it, a success in between resets", () => {
    const changes = newBreaker();
    breaker.failed(FAILURE);
    breaker.succeeded();
    breaker.failed(FAILURE);
    expect(breaker.state).toBe("up");
    breaker.failed(FAILURE);
    expect(breaker.state).toBe("down");
    expect(breaker.reason).toBe("connect refused");
    expect(changes).toEqual(["up", "down"]);
  });

  test("F34 probes after a pause until one succeeds, then closes", async () => {
    const probes: number[] = [];
    const startMs = performance.now();
    const changes = newBreaker(() => {
      probes.push(performance.now() - startMs);
      return probes.length < 2 ? Promise.reject(FAILURE) : Promise.resolve();
    });
    breaker.failed(FAILURE);
    breaker.failed(FAILURE);
    await until(() => breaker.state === "up", "the second probe");
    expect(changes).toEqual(["down", "up"]);
    expect(probes).toHaveLength(2);
    const [first = 0] = probes;
    expect(first).toBeGreaterThanOrEqual(PROBE_MIN_MS - 5);
  });

  test("close ends the probing", async () => {
    let probes = 0;
    newBreaker(() => {
      probes += 1;
      return Promise.reject(FAILURE);
    });
    breaker.failed(FAILURE);
    breaker.failed(FAILURE);
    breaker.close();
    await new Promise((resolve) => {
      setTimeout(resolve, PROBE_MAX_MS + 100);
    });
    expect(probes).toBe(0);
  });
});
