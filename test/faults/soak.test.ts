// Owns the soak: traffic with changing faults, after which nothing may have grown.
// @module-tag nightly
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { until } from "../support/vaults.ts";
import { Dice } from "./lib/random.ts";
import { expectNothingLeft, FLOOR, openStand, resources } from "./lib/stand.ts";

const KIB = 1024;
/** Seconds, from TIERKV_TEST_SOAK_S; an hour in a long run. */
const SECONDS = Number(process.env["TIERKV_TEST_SOAK_S"] ?? 10);
/** Growth of the process's later memory peaks over earlier ones (goal G17). */
const GROWN_PERCENT_MAX = 5;
/** Period of faults in a long run, with none in between; in a short run they follow each other. */
const PERIOD_MS = SECONDS > 60 ? 10_000 : 0;
/** Plans that end under each fault, and under faults that block everything. */
const PLANS = PERIOD_MS > 0 ? 10 : 40;
const PLANS_BLOCKED = 3;
const WEATHERS = [
  {},
  { latencyMs: 20, jitterMs: 50 },
  { stallEvery: 200 * KIB },
  { sliceBytes: 900 },
  { corruptEvery: 100 * KIB },
  { resetEvery: 300 * KIB },
  { duplicateEvery: 300 * KIB },
  { bytesPerSecond: 500 * KIB },
  { hold: "to-vault" },
  { lose: "both" },
] as const;

test(
  "F7 a soak in changing weather leaves nothing and grows nothing",
  async () => {
    const stand = await openStand({ chains: 64 });
    const { load, weather, seed } = stand;
    const dice = new Dice(seed);
    load.start();
    await load.wholeMore(FLOOR, "before the faults");
    const before = resources();
    const endMs = performance.now() + SECONDS * 1000;
    const rss: number[] = [];
    while (performance.now() < endMs) {
      const nextMs = performance.now() + PERIOD_MS;
      weather.set(WEATHERS[dice.below(WEATHERS.length)]!);
      const { hold, lose } = weather.faults;
      await load.plansMore(hold === "none" && lose === "none" ? PLANS : PLANS_BLOCKED);
      if (PERIOD_MS > 0) {
        weather.set({});
        await sleep(Math.max(0, nextMs - performance.now()));
      }
      rss.push(process.memoryUsage.rss());
      expect(load.ledger.wrong, `seed ${seed}`).toBe(0);
    }
    weather.set({});
    await load.wholeMore(FLOOR, "after the faults");
    await load.stop();
    await until(() => stand.sidecar.status().vaults.kv[0]!.state === "up", "the vault to be up");
    await expectNothingLeft(stand, before);
    const { placed, saved, wrong, plans } = load.ledger;
    // Compares later peaks with earlier ones, after a third of the time for growth.
    const third = Math.floor(rss.length / 3);
    const peak = (from: number, to: number): number => Math.max(...rss.slice(from, to));
    const grown = (peak(third * 2, rss.length) / peak(third, third * 2 + 1) - 1) * 100;
    const peaksMib = [0, 1, 2].map((at) =>
      Math.round(peak(third * at, third * (at + 1)) / 2 ** 20),
    );
    const result = { seed, ops: placed + saved, plans, wrong, weathers: rss.length };
    const memory = { peaksMib, grownPercent: grown };
    process.stdout.write(`soak ${JSON.stringify({ ...result, ...memory })}\n`);
    // Skipped in a short run, which still grows.
    if (SECONDS >= 60)
      expect(grown, `seed ${seed}: ${peaksMib.join(", ")} MiB`).toBeLessThan(GROWN_PERCENT_MAX);
  },
  (SECONDS + 300) * 1000,
);
