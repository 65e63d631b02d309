// Why a block is missed follows from what became of it here; the memory is bounded.
import { expect, test } from "vitest";
import { toNamespace } from "../../../src/block.ts";
import { FATES_MAX } from "../../../src/limits.ts";
import { Fates } from "../../../src/sidecar/trace/fates.ts";

const OURS = toNamespace(Buffer.alloc(32, 1));
const THEIRS = toNamespace(Buffer.alloc(32, 2));
const ANYBODY = 0;
const hash = (number: number): Buffer => {
  const bytes = Buffer.alloc(32);
  bytes.writeUInt32LE(number);
  return bytes;
};

test("a miss has the reason of the block's latest fate", () => {
  const fates = new Fates();
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("never_stored");
  fates.dropped(OURS, 0, hash(1), "queue_full");
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("dropped_queue_full");
  fates.stored(OURS, 0, hash(1));
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
  expect(fates.missReason(THEIRS, "kv", 0, hash(1), ANYBODY)).toBe("other_namespace");
  expect(fates.missReason(OURS, "kv", 1, hash(1), ANYBODY)).toBe("never_stored");
});

test("what was stored before its vault was started again is lost, what came after is not", () => {
  const fates = new Fates();
  fates.stored(OURS, 0, hash(1));
  fates.restarted("ssm");
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
  fates.restarted("kv");
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("lost");
  fates.flushed("kv", () => true);
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("flushed");
  fates.stored(OURS, 0, hash(1));
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
});

test("what a tenant's flush took is flushed for that tenant, and evicted for others", () => {
  const fates = new Fates();
  fates.stored(OURS, 0, hash(1));
  fates.flushed("kv", (_namespace, tenant) => tenant === 5);
  expect(fates.missReason(OURS, "kv", 0, hash(1), 5)).toBe("flushed");
  expect(fates.missReason(OURS, "kv", 0, hash(1), 6)).toBe("evicted");
});

test("the oldest fate is forgotten", () => {
  const fates = new Fates();
  for (let number = 0; number <= FATES_MAX; number += 1) fates.stored(OURS, 0, hash(number));
  expect(fates.missReason(OURS, "kv", 0, hash(0), ANYBODY)).toBe("never_stored");
  expect(fates.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
});
