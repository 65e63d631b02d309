// Owns the proof that the gap between two uses of a block, and the bytes stored meanwhile, are counted by hit or miss.
import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { HASH_BYTES, newBitmap, setBit } from "../../../src/base/block.ts";
import type { Namespace } from "../../../src/base/block.ts";
import { REUSE_KEPT_MAX, REUSE_SAMPLED_EVERY } from "../../../src/base/limits/seen.ts";
import { newSidecarCounters } from "../../../src/base/metrics.ts";
import { Reuse } from "../../../src/sidecar/trace/reuse.ts";
import { openRestored, restoreAgain } from "../../support/pages.ts";

const MB = 1e6;
const NAMESPACE = Buffer.alloc(32, 1) as Namespace;

const STORED = (): boolean => true;

/** Returns hashes from the sampled sixteenth, chosen by the first byte. */
function sampled(count: number, salt = ""): Buffer {
  const hashes = Array.from({ length: count }, (_, at) =>
    createHash("sha256").update(`${salt}${at}`).digest(),
  );
  for (const hash of hashes) hash[0] = 0;
  return Buffer.concat(hashes);
}

test("a block that is asked for again counts, with what was stored since, and whether it is held", () => {
  const counters = newSidecarCounters();
  const reuse = new Reuse(counters);
  const hashes = sampled(3);
  const asked = { group: 0, hashes, from: 1 };
  reuse.asked(NAMESPACE, asked, newBitmap(3), STORED);
  counters.add("bytes_sent", 100 * MB);
  const held = newBitmap(3);
  setBit(held, 2);
  reuse.asked(NAMESPACE, asked, held, STORED);
  const { gapS, storedBytes } = reuse.status();
  // The first block is the engine's own, the second is gone.
  expect([gapS.held.count, gapS.gone.count]).toEqual([1, 1]);
  expect([storedBytes.held.sum, storedBytes.gone.sum]).toEqual([100 * MB, 100 * MB]);
  expect(storedBytes.held.counts.slice(0, 2)).toEqual([0, 1]);
  expect(gapS.held.counts[0]).toBe(1);
});

test("a block that no vault ever had is not counted as gone; one that was held or stored is", () => {
  const reuse = new Reuse(newSidecarCounters());
  const hashes = sampled(3);
  const held = newBitmap(3);
  setBit(held, 1);
  const group = { group: 0, hashes, from: 0, class: "kv", tenant: 0 } as const;
  // As windows that the engine gave up before they were saved, and a block that another sidecar stored.
  const outcomes = {
    missReason: (_namespace: Namespace, _of: object, key: string): string =>
      key.includes(hashes.subarray(2 * HASH_BYTES).toString("latin1")) ? "evicted" : "never_stored",
  };
  for (const bits of [held, newBitmap(3)])
    reuse.answered(NAMESPACE, [group], { groups: [{ held: bits }], silent: new Set() }, outcomes);
  const { gone, held: still } = reuse.status().gapS;
  expect([gone.count, still.count]).toEqual([2, 0]);
});

test("other groups, hashes and models are other blocks; of all one in 16 is looked at", () => {
  const reuse = new Reuse(newSidecarCounters());
  const hashes = sampled(2);
  hashes[HASH_BYTES] = REUSE_SAMPLED_EVERY - 1;
  const held = newBitmap(2);
  for (const group of [0, 1, 0]) reuse.asked(NAMESPACE, { group, hashes, from: 0 }, held, STORED);
  reuse.asked(Buffer.alloc(32, 2) as Namespace, { group: 0, hashes, from: 0 }, held, STORED);
  expect(reuse.status().gapS.gone.count).toBe(1);
});

test("the longest unused is forgotten first", () => {
  const reuse = new Reuse(newSidecarCounters());
  const ask = (hashes: Buffer): void => {
    const held = newBitmap(hashes.length / HASH_BYTES);
    reuse.asked(NAMESPACE, { group: 0, hashes, from: 0 }, held, STORED);
  };
  const [old, used] = [sampled(1, "old"), sampled(1, "used")];
  ask(old);
  ask(used);
  const many = sampled(REUSE_KEPT_MAX, "many");
  ask(many.subarray(0, -2 * HASH_BYTES));
  ask(used);
  ask(many.subarray(-2 * HASH_BYTES));
  expect(reuse.status().gapS.gone.count).toBe(1);
  ask(used);
  expect(reuse.status().gapS.gone.count).toBe(2);
  ask(old);
  expect(reuse.status().gapS.gone.count).toBe(2);
});

test("a sidecar counts the blocks of its engines' requests", async () => {
  const scene = await openRestored();
  const count = (): number => {
    const { held, gone } = scene.sidecar.status().reuse.gapS;
    return held.count + gone.count;
  };
  const before = count();
  await restoreAgain(scene);
  expect(count()).toBeGreaterThan(before);
  expect(scene.sidecar.status().reuse.gapS.gone.count).toBe(0);
});
