// Owns the proof by simulation: over many seeds of vaults that come, go, forget and evict, every miss has a cause, and a seed replays exactly.
import { expect, test } from "vitest";
import { lookupOf, movesOf } from "../../../bench/sim/scale.js";
import { runSeed } from "../../../bench/sim/world.js";
import { RUN_BLOCKS } from "../../../src/limits-pool.ts";
import { NO_VAULT } from "../../../src/pool/placement.ts";
import { Ring } from "../../../src/pool/ring.ts";
import { Pool } from "../../../src/sidecar/vaults/pools.ts";
import { testSeed } from "../../faults/lib/random.ts";

const SEEDS = process.env["TIERKV_TEST_LONG"] === "on" ? 1000 : 200;
const TEST_MS_MAX = 240_000;
const PARTS = { Pool, NO_VAULT, RUN_BLOCKS };

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
    // Without losses and evictions there would be nothing to see.
    expect(sum(({ losses }) => losses)).toBeGreaterThan(SEEDS / 4);
    expect(sum(({ evicted }) => evicted)).toBeGreaterThan(SEEDS);
    expect(sum(({ lost }) => lost, single)).toBeGreaterThan(SEEDS / 4);
    expect(sum(({ lost }) => lost, double)).toBe(0);
    const runs = sum((one) => one.runs);
    const seen = sum((one) => one.found + one.fresh + one.evicted + one.lost + one.elsewhere);
    expect(seen).toBe(runs);
    // Hosts that hear of changes at different times miss a little of what is held, and nothing while all see the same.
    expect(sum(({ elsewhere }) => elsewhere) / runs).toBeLessThan(0.007);
    expect(sum(({ calmElsewhere }) => calmElsewhere)).toBe(0);
    const again = [0, SEEDS / 2, SEEDS - 1];
    expect(again.map((at) => runSeed(first + at, PARTS))).toEqual(again.map((at) => all[at]));
  },
);

test.each([8, 100])(
  "of %i vaults one that comes or goes moves about its own share, and nothing between the others",
  (count) => {
    const moves = Array.from({ length: 3 }, (_none, seed) => movesOf(seed, count, { Ring }));
    expect(moves.map(({ astray }) => astray)).toEqual([0, 0, 0]);
    for (const { join, leave } of moves) {
      expect(join).toBeLessThanOrEqual(1 / count + 0.02);
      expect(leave).toBeLessThanOrEqual(1 / count + 0.02);
    }
    const { asked } = lookupOf(1, count, { Ring });
    expect(asked).toBeLessThanOrEqual(Math.min(count, 64));
  },
);
