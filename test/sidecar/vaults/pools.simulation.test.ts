// Owns the proof by simulation: over many seeds of changing vaults and links, every miss has a cause, and a seed replays.
// @module-tag nightly
import { expect, test } from "vitest";
import { lookupOf, movesOf, onPaper } from "../../../bench/sim/scale.js";
import { runSeed } from "../../../bench/sim/world.js";
import { LAYOUTS, PART_BLOCKS, RUN_BLOCKS } from "../../../src/base/limits/pool.ts";
import { EngineRates } from "../../../src/cost/engine-rates.ts";
import { Link } from "../../../src/cost/link.ts";
import { NO_VAULT, Placement } from "../../../src/pool/placement.ts";
import { Pool } from "../../../src/sidecar/vaults/pools.ts";
import { testSeed } from "../../faults/lib/random.ts";

const SEEDS = process.env["TIERKV_TEST_LONG"] === "on" ? 100_000 : 1000;
const TEST_MS_MAX = 240 * SEEDS;
const PARTS = { Pool, NO_VAULT, RUN_BLOCKS, EngineRates, Link };
const SCALE = { Placement, LAYOUTS, RUN_BLOCKS, PART_BLOCKS };

test(
  "a pool of simulated vaults loses what a lost vault alone held, and with two copies nothing",
  { timeout: TEST_MS_MAX },
  () => {
    const first = testSeed();
    const all = Array.from({ length: SEEDS }, (_none, at) => runSeed(first + at, PARTS));
    const sum = (of: (one: (typeof all)[number]) => number, from = all): number =>
      from.reduce((total, one) => total + of(one), 0);
    const [single, double] = [false, true].map((is) =>
      all.filter(({ isDouble }) => isDouble === is),
    );
    // The seeds must contain losses and evictions.
    expect(sum(({ losses }) => losses)).toBeGreaterThan(SEEDS / 4);
    expect(sum(({ evicted }) => evicted)).toBeGreaterThan(SEEDS);
    expect(sum(({ lost }) => lost, single)).toBeGreaterThan(SEEDS / 4);
    expect(sum(({ lost }) => lost, double)).toBe(0);
    const runs = sum((one) => one.runs);
    const seen = sum((one) => one.found + one.fresh + one.evicted + one.lost + one.elsewhere);
    expect(seen).toBe(runs);
    // Hosts with different views miss a little of the held runs, and none while all views agree.
    expect(sum(({ elsewhere }) => elsewhere) / runs).toBeLessThan(0.007);
    expect(sum(({ calmElsewhere }) => calmElsewhere)).toBe(0);
    // Where rates are known, the cost model chooses the first answer, and no request waits for a slow link.
    const [restored, computed] = [sum((one) => one.restored), sum((one) => one.computed)];
    expect(Math.min(restored, computed)).toBeGreaterThan(SEEDS / 4);
    expect(sum(({ late }) => late) / (restored + computed)).toBeLessThan(0.001);
    expect(sum(({ tookS }) => tookS) / sum(({ bestS }) => bestS)).toBeLessThan(1.02);
    const again = [0, SEEDS / 2, SEEDS - 1];
    expect(again.map((at) => runSeed(first + at, PARTS))).toEqual(again.map((at) => all[at]));
  },
);

test.each([
  ["parts", 4, 0.03, 0.03, 1.02],
  ["parts", 8, 0.045, 0.04, 1.04],
  ["parts", 16, 0.035, 0.035, 1.1],
  ["parts", 63, 0.01, 0.01, 1.3],
  ["whole", 8, 0.02, 0, 1.2],
  ["whole", 63, 0.02, 0, 1.4],
] as const)(
  "%s of prompts: of %i vaults one that comes or goes moves its share and %f more, %f between the others, and the fullest has %f of the mean",
  (cut, count, slack, astray, most) => {
    for (const moves of [0, 1, 2].map((seed) => movesOf(seed, count, { Placement, cut }))) {
      expect(moves.join).toBeLessThanOrEqual(1 / (count + 1) + slack);
      expect(moves.leave).toBeLessThanOrEqual(1 / count + slack);
      expect(moves.astray).toBeLessThanOrEqual(astray);
      expect(moves.mostOverMean).toBeLessThan(most);
    }
  },
);

test("a host's memory grows with its vaults, and a long prompt asks all of them once", () => {
  for (const count of [4, 16, 63]) {
    const { asked, bytes } = lookupOf(1, count, SCALE);
    expect(asked).toBeGreaterThan(count * 0.99);
    expect(bytes).toBe(count * 32_768);
  }
  expect(onPaper([32, 320], [64, 640], 1000)).toBeCloseTo(10_000);
});
