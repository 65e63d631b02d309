// The fit finds a law from its samples, forgets an old one, keeps what is rare, and never says less than nothing.
import { describe, expect, test } from "vitest";
import { Average } from "../../src/cost/average.ts";
import { Fit } from "../../src/cost/fit.ts";

/** Seconds of a step: 5 ms, 20 us a token, 3 ns a pair. */
const law = (tokens: number, attended: number): number => 5e-3 + 2e-5 * tokens + 3e-9 * attended;

/** A number between 0.9 and 1.1, from a fixed sequence. */
function noise(): () => number {
  let state = 1;
  return () => {
    state = (state * 16807) % 2147483647;
    return 0.9 + (state / 2147483647) * 0.2;
  };
}

describe("a fit", () => {
  test("knows nothing before its first sample", () => {
    const fit = new Fit(2, [[1]]);
    expect(fit.predict([1, 1])).toBeNull();
    fit.add([1, 1], 0);
    fit.add([1, Number.NaN], 1);
    expect(fit.predict([1, 1])).toBeNull();
  });

  test("finds base, linear and quadratic part through noise of 10 %", () => {
    const fit = new Fit(3, [[1]]);
    const shake = noise();
    for (let round = 0; round < 20; round += 1) {
      for (const [tokens, position] of [
        [100, 0],
        [2048, 0],
        [2048, 8192],
        [2048, 30_000],
        [700, 2048],
      ] as const) {
        const attended = tokens * position + (tokens * tokens) / 2;
        fit.add([1, tokens, attended], law(tokens, attended) * shake());
      }
    }
    for (const [tokens, attended] of [
      [50, 1250],
      [1000, 500_000],
      [2048, 2048 * 20_000],
    ] as const) {
      const ratio = fit.predict([1, tokens, attended])! / law(tokens, attended);
      expect(ratio).toBeGreaterThan(0.9);
      expect(ratio).toBeLessThan(1.1);
    }
  });

  test("keeps what a rare long sample taught while short ones come by the hundred", () => {
    const fit = new Fit(3, [[1]]);
    fit.add([1, 2048, 6e7], law(2048, 6e7));
    for (let count = 0; count < 100; count += 1) fit.add([1, 64, 2048], law(64, 2048));
    expect(fit.predict([1, 2048, 6e7])! / law(2048, 6e7)).toBeCloseTo(1, 1);
  });

  test("follows an engine that became twice as slow", () => {
    const fit = new Fit(2, [[1]]);
    const sizes = [100, 500, 2000];
    for (let round = 0; round < 50; round += 1) for (const n of sizes) fit.add([1, n], 1e-5 * n);
    for (let round = 0; round < 30; round += 1) for (const n of sizes) fit.add([1, n], 2e-5 * n);
    expect(fit.predict([1, 1000])).toBeCloseTo(2e-2, 3);
  });

  test("of samples of one size, or nearly one, leaves nothing to the doubted feature", () => {
    const one = new Fit(3, [[1]]);
    for (const seconds of [2.2, 2, 2.1]) one.add([1, 1000, 5e5], seconds);
    expect(one.predict([1, 4000, 8e6])).toBeGreaterThan(6);
    expect(one.predict([1, 100, 5e3])).toBeLessThan(0.3);
    const near = new Fit(3, [[1]]);
    for (const [tokens, seconds] of [
      [1000, 2.2],
      [1100, 2],
      [900, 2.1],
    ] as const) {
      near.add([1, tokens, tokens ** 2 / 2], seconds);
    }
    expect(near.predict([1, 100, 5e3])).toBeLessThan(0.5);
  });

  test("finds a base that is really there", () => {
    const fit = new Fit(3, [[1]]);
    for (const tokens of [16, 100, 1000]) fit.add([1, tokens, tokens ** 2 / 2], 0.02);
    expect(fit.predict([1, 16, 128])).toBeGreaterThan(0.017);
  });

  test("has no negative coefficient, whatever it is told", () => {
    const fit = new Fit(2, [[1]]);
    for (const n of [10, 100, 1000]) fit.add([1, n], 1 / n);
    for (const value of fit.coefficients!) expect(value).toBeGreaterThanOrEqual(0);
    expect(fit.predict([1, 1e6])).toBeGreaterThan(0);
  });
});

test("an average has a mean and a spread, and follows", () => {
  const average = new Average(0.2);
  expect(average.mean).toBeNull();
  for (let round = 0; round < 40; round += 1) average.add(round % 2 === 0 ? 9 : 11);
  expect(average.mean).toBeCloseTo(10, 0);
  expect(average.deviation).toBeGreaterThan(0.7);
  expect(average.deviation).toBeLessThan(1.3);
  for (let round = 0; round < 40; round += 1) average.add(50);
  expect(average.mean).toBeCloseTo(50, 0);
});
