// Why a block is missed follows from what became of it here; the memory is bounded.
import { expect, test } from "vitest";
import { toNamespace } from "../../../src/block.ts";
import { OUTCOMES_MAX } from "../../../src/limits.ts";
import { BlockOutcomes } from "../../../src/sidecar/trace/block-outcomes.ts";

const OURS = toNamespace(Buffer.alloc(32, 1));
const THEIRS = toNamespace(Buffer.alloc(32, 2));
const ANYBODY = 0;
const hash = (number: number): Buffer => {
  const bytes = Buffer.alloc(32);
  bytes.writeUInt32LE(number);
  return bytes;
};

test("a miss has the reason of the block's latest outcome", () => {
  const outcomes = new BlockOutcomes();
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("never_stored");
  outcomes.dropped(OURS, 0, hash(1), "queue_full");
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("dropped_queue_full");
  outcomes.stored(OURS, 0, hash(1));
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
  expect(outcomes.missReason(THEIRS, "kv", 0, hash(1), ANYBODY)).toBe("other_namespace");
  expect(outcomes.missReason(OURS, "kv", 1, hash(1), ANYBODY)).toBe("never_stored");
});

test("what was stored before its vault was started again is lost, what came after is not", () => {
  const outcomes = new BlockOutcomes();
  outcomes.stored(OURS, 0, hash(1));
  outcomes.restarted("ssm");
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
  outcomes.restarted("kv");
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("lost");
  outcomes.flushed("kv", () => true);
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("flushed");
  outcomes.stored(OURS, 0, hash(1));
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
});

test("what a tenant's flush took is flushed for that tenant, and evicted for others", () => {
  const outcomes = new BlockOutcomes();
  outcomes.stored(OURS, 0, hash(1));
  outcomes.flushed("kv", (_namespace, tenant) => tenant === 5);
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), 5)).toBe("flushed");
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), 6)).toBe("evicted");
});

test("the oldest outcome is forgotten", () => {
  const outcomes = new BlockOutcomes();
  for (let number = 0; number <= OUTCOMES_MAX; number += 1) outcomes.stored(OURS, 0, hash(number));
  expect(outcomes.missReason(OURS, "kv", 0, hash(0), ANYBODY)).toBe("never_stored");
  expect(outcomes.missReason(OURS, "kv", 0, hash(1), ANYBODY)).toBe("evicted");
});
