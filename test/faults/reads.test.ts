// Owns the count behind "never wrong bytes": 200,000 reads through faults of all kinds, each compared with its original.
// @module-tag nightly
import { expect, test } from "vitest";
import type { TestSidecar } from "../support/sidecars.ts";
import { closeAfterTest, until } from "../support/vaults.ts";
import { Load } from "./lib/load.ts";
import { openStand } from "./lib/stand.ts";
import type { StandOptions } from "./lib/stand.ts";

/** Number of reads from TIERKV_TEST_READS, for a long run. */
const LONG = process.env["TIERKV_TEST_READS"];
const READS = Number(LONG ?? 200_000);
const POOL_READS = Number(LONG ?? 20_000);
const TEST_MS_MAX = 800_000 * Math.max(1, READS / 200_000);
const KIB = 1024;
const SHAPE = { chains: 24, length: 128, arenaBytes: 1536 * KIB };

/** Faults in rotation; a chain of one engine is about 150 KiB on the wire. */
const WEATHERS = [
  { corruptEvery: 200 * KIB },
  { corruptEvery: 400 * KIB, sliceBytes: 1500 },
  { resetEvery: 1024 * KIB, sliceBytes: 8 * KIB },
  { duplicateEvery: 512 * KIB, jitterMs: 2 },
  { reorderEvery: 512 * KIB, sliceBytes: 4 * KIB },
] as const;

const FAULTS = ["corrupt", "reset", "duplicate", "reorder", "sliced"] as const;

/** Reads until the count is reached and each fault has acted; returns the sidecar. */
async function readThroughFaults(
  word: string,
  reads: number,
  options: StandOptions,
): Promise<TestSidecar> {
  const stand = await openStand({ ...SHAPE, ...options });
  const { seed, weather, sidecar } = stand;
  const second = await Load.open(sidecar.socketPath, { ...SHAPE, seed: seed + 1, engine: "two" });
  closeAfterTest({ close: () => second.stop() });
  const loads = [stand.load, second];
  const sum = (of: "placed" | "wrong" | "asked" | "plans"): number =>
    loads.reduce((total, { ledger }) => total + ledger[of], 0);
  for (const load of loads) load.start();
  await Promise.all(loads.map((load) => load.wholeMore(SHAPE.chains, "before the faults")));
  const [before, askedBefore] = [sum("placed"), sum("asked")];
  const { counts } = weather;
  const hasActed = (): boolean => FAULTS.every((name) => counts[name] > 0);
  for (let turn = 0; sum("placed") - before < reads || !hasActed(); turn += 1) {
    weather.set(WEATHERS[turn % WEATHERS.length]!);
    const plans = sum("plans") + 40;
    await until(() => sum("plans") >= plans, "plans to end");
    expect(sum("wrong"), `seed ${seed}`).toBe(0);
  }
  weather.set({});
  await Promise.all(loads.map((load) => load.wholeMore(SHAPE.chains, "after the faults")));
  for (const load of loads) await load.stop();
  expect(sum("wrong"), `seed ${seed}`).toBe(0);
  const bad = sidecar.counters.get("bad_records");
  expect(bad).toBeGreaterThan(0);
  // Printed for the record of long runs.
  const { corrupt, reset, duplicate, reorder } = counts;
  const read = sum("placed") - before;
  const asked = sum("asked") - askedBefore;
  const acted = { corrupt, reset, duplicate, reorder, badRecords: bad };
  const result = { seed, asked, read, wrong: sum("wrong"), ...acted };
  process.stdout.write(`${word} ${JSON.stringify(result)}\n`);
  return sidecar;
}

test("F9 200,000 reads through faults: none is wrong", { timeout: TEST_MS_MAX }, async () => {
  await readThroughFaults("faulted reads", READS, {});
});

test(
  "F102 20,000 reads of a pool that keeps each record twice, through faults: none is wrong, and some came from the second vault",
  { timeout: TEST_MS_MAX },
  async () => {
    const options = { more: 2, redundancy: "copies:2" } as const;
    const { counters } = await readThroughFaults("faulted pool reads", POOL_READS, options);
    expect(counters.get("blocks_failed_over")).toBeGreaterThan(0);
    expect(counters.get("replicas_saved")).toBeGreaterThan(0);
  },
);
