// The reason of a miss follows from the block's last outcome here; the memory is bounded.
import { expect, test } from "vitest";
import { packKeys, toNamespace } from "../../../src/base/block.ts";
import type { Namespace } from "../../../src/base/block.ts";
import { blockKey } from "../../../src/base/key-text.ts";
import { OUTCOMES_MAX } from "../../../src/base/limits/general.ts";
import { BlockOutcomes } from "../../../src/sidecar/trace/block-outcomes.ts";

const OURS = toNamespace(Buffer.alloc(32, 1));
const THEIRS = toNamespace(Buffer.alloc(32, 2));
const ANYBODY = 0;
const hash = (number: number): Buffer => {
  const bytes = Buffer.alloc(32);
  bytes.writeUInt32LE(number);
  return bytes;
};
const of = (tenant: number): { class: "kv"; tenant: number } => ({ class: "kv", tenant });
const key = (namespace: Namespace, group: number, number: number): string =>
  blockKey(namespace, group, hash(number));
const packed = (group: number, number: number, shard = 0): Buffer =>
  packKeys(hash(number), group, shard);

test("a miss has the reason of the block's latest outcome", () => {
  const outcomes = new BlockOutcomes();
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("never_stored");
  outcomes.dropped(OURS, packed(0, 1), "queue_full");
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("dropped_queue_full");
  outcomes.stored(OURS, packed(0, 1));
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("evicted");
  expect(outcomes.missReason(THEIRS, of(ANYBODY), key(THEIRS, 0, 1))).toBe("other_namespace");
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 1, 1))).toBe("never_stored");
});

test("blocks stored before their vault restarted are lost, later ones are not", () => {
  const outcomes = new BlockOutcomes();
  outcomes.stored(OURS, packed(0, 1));
  outcomes.restarted("ssm");
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("evicted");
  outcomes.restarted("kv");
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("lost");
  outcomes.flushed("kv", () => true);
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("flushed");
  outcomes.stored(OURS, packed(0, 1));
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("evicted");
});

test("blocks of a tenant's flush are flushed for that tenant, and evicted for others", () => {
  const outcomes = new BlockOutcomes();
  outcomes.stored(OURS, packed(0, 1));
  outcomes.flushed("kv", (_namespace, tenant) => tenant === 5);
  expect(outcomes.missReason(OURS, of(5), key(OURS, 0, 1))).toBe("flushed");
  expect(outcomes.missReason(OURS, of(6), key(OURS, 0, 1))).toBe("evicted");
});

test("the outcome of any shard is the block's", () => {
  const outcomes = new BlockOutcomes();
  outcomes.dropped(OURS, packed(0, 1, 3), "queue_full");
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("dropped_queue_full");
});

test("the oldest outcome is forgotten", () => {
  const outcomes = new BlockOutcomes();
  for (let number = 0; number <= OUTCOMES_MAX; number += 1)
    outcomes.stored(OURS, packed(0, number));
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 0))).toBe("never_stored");
  expect(outcomes.missReason(OURS, of(ANYBODY), key(OURS, 0, 1))).toBe("evicted");
});
