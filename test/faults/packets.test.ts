// Owns the worst network: a fifth of the packets lost, jitter, damage, repeats and slices, all at once.
// @module-tag nightly
import { expect, test } from "vitest";
import { until } from "../support/vaults.ts";
import type { WireCounts } from "./lib/byte-proxy.ts";
import { expectNothingLeft, FLOOR, openStand, resources } from "./lib/stand.ts";

/** Seconds, from TIERKV_TEST_PACKETS_S; ten minutes in a long run (goal G12). */
const SECONDS = Number(process.env["TIERKV_TEST_PACKETS_S"] ?? 6);
/** Bytes of a TCP stream in one Ethernet frame. */
const PACKET_BYTES = 1448;
const JITTER = { jitterMs: 50, sliceBytes: PACKET_BYTES };
/** 20 % lost: nothing passes until TCP repeats them. */
const LOSSES = { stallEvery: PACKET_BYTES * 5 };
/** 1 % damaged or repeated undetected by TCP. */
const DAMAGE = { corruptEvery: PACKET_BYTES * 100, duplicateEvery: PACKET_BYTES * 100 };
/** All together and each alone, in turn, because under all of them the vault is soon down. */
const MIXES = [
  { ...JITTER, ...DAMAGE },
  { ...JITTER, ...LOSSES, ...DAMAGE },
  { ...JITTER, ...LOSSES },
] as const;
const TURN_MS = Math.min(10_000, (SECONDS * 1000) / (MIXES.length * 2));
/** Least actions per fault, because a run in which faults hardly act is void. */
const ACTED: Partial<WireCounts> = { stall: 10, corrupt: 1, duplicate: 1, sliced: 100 };
/** Longest time of a plan: its wait, plus the delay of a busy machine. */
const PLAN_MS_MAX = 60_000;

test(
  "F7 losses, jitter, damage, repeats and slices at once: nothing wrong, nothing hangs",
  async () => {
    const stand = await openStand();
    const { load, weather, seed, proxy, sidecar } = stand;
    load.start();
    await load.wholeMore(FLOOR, "before the faults");
    const before = resources();
    const placedBefore = sidecar.counters.get("blocks_restored_vault");
    const endMs = performance.now() + SECONDS * 1000;
    let longestMs = 0;
    const hasActed = (): boolean =>
      Object.entries(ACTED).every(([name, least]) => weather.counts[name as never] >= least);
    for (let turn = 0; performance.now() < endMs || !hasActed(); turn += 1) {
      weather.set(MIXES[turn % MIXES.length]!);
      // Cut at once, because garbled HTTP/2 stays silent until its pings are missed.
      proxy.cut();
      const turnEndMs = performance.now() + TURN_MS;
      while (performance.now() < turnEndMs) {
        const begunMs = performance.now();
        await load.plansMore(1);
        longestMs = Math.max(longestMs, performance.now() - begunMs);
      }
      expect(load.ledger.wrong, `seed ${seed}`).toBe(0);
    }
    const placed = sidecar.counters.get("blocks_restored_vault") - placedBefore;
    weather.set({});
    proxy.cut();
    await load.wholeMore(FLOOR, "after the faults");
    await load.stop();
    await until(() => sidecar.status().vaults.kv[0]!.state === "up", "the vault to be up");
    await expectNothingLeft(stand, before);
    const { plans, wrong } = load.ledger;
    const { stall, corrupt, duplicate } = weather.counts;
    const acted = { stall, corrupt, duplicate };
    const result = { seed, plans, placed, wrong, ...acted, longestMs: Math.round(longestMs) };
    process.stdout.write(`packets ${JSON.stringify(result)}\n`);
    expect(placed, "blocks that came through all the same").toBeGreaterThan(0);
    expect(longestMs).toBeLessThan(PLAN_MS_MAX);
    // A failed request would have ended the engine's connection.
    expect(load.engine.scheduler.isClosed).toBe(false);
  },
  (SECONDS + 300) * 1000,
);
