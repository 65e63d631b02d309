// Owns the proof that network faults under load cost hits only; each fault acts on gRPC and on lanes.
// @module-tag nightly
import { describe, expect, test } from "vitest";
import type { WireCounts, WireFaults } from "./lib/byte-proxy.ts";
import { openStand, underLoad } from "./lib/stand.ts";

const KIB = 1024;

interface Case {
  title: string;
  faults: Partial<WireFaults>;
  /** Least counts of the proxy's actions. */
  acted: Partial<WireCounts>;
}

const CASES: readonly Case[] = [
  {
    title: "F4 a vault ten times slower",
    faults: { latencyMs: 100 },
    acted: { delayed: 20 },
  },
  {
    title: "F4 a vault that trickles",
    faults: { bytesPerSecond: 20 * KIB, sliceBytes: 4 * KIB },
    acted: { sliced: 5 },
  },
  { title: "F5 a partition", faults: { hold: "both", refuse: true }, acted: { held: 2 } },
  {
    title: "F5 a partition one way",
    faults: { hold: "to-client" },
    acted: { held: 1 },
  },
  {
    title: "F6 a peer that is gone without a word",
    faults: { lose: "both" },
    acted: { lost: 200 },
  },
  {
    title: "F6 a peer that hears and does not answer",
    faults: { lose: "to-client" },
    acted: { lost: 200 },
  },
  {
    title: "F7 losses and reordered packets, as TCP shows them",
    faults: { latencyMs: 2, jitterMs: 20, sliceBytes: 8 * KIB, stallEvery: 100 * KIB },
    acted: { delayed: 20, sliced: 20, stall: 2 },
  },
  {
    title: "F8 connections reset in the middle of frames",
    faults: { resetEvery: 30 * KIB },
    acted: { reset: 3 },
  },
  {
    title: "F9 flipped bits on the way",
    faults: { corruptEvery: 20 * KIB },
    acted: { corrupt: 10 },
  },
  {
    title: "F10 bytes that come twice",
    faults: { duplicateEvery: 20 * KIB },
    acted: { duplicate: 5 },
  },
  {
    title: "F10 bytes that overtake each other",
    faults: { reorderEvery: 20 * KIB, sliceBytes: 4 * KIB },
    acted: { reorder: 5 },
  },
];

describe("records on lanes", () => {
  test.each(CASES)("$title", async ({ faults, acted }) => {
    const stand = await openStand();
    const { weather, load, proxy } = stand;
    const hasActed = (): boolean =>
      Object.entries(acted).every(([name, least]) => weather.counts[name as never] >= least);
    await underLoad(stand, {
      inject: () => weather.set(faults),
      acted: hasActed,
      heal: () => {
        weather.set({});
        // Cut at once, because garbled HTTP/2 stays silent until its pings are missed, after 40 s.
        if (faults.duplicateEvery !== undefined || faults.reorderEvery !== undefined) {
          proxy.cut();
        }
      },
    });
    expect(load.ledger.placed).toBeGreaterThan(0);
  });
});
