// Owns the proof that a plan's nodes of Valkey and its bucket hold what they are said to hold.
import { expect, test } from "vitest";
import {
  allocated,
  bucketRequests,
  forecastStores,
  valkeyRecordBytes,
} from "../../../src/extras/plan/stores.ts";
import type { Block } from "../../../src/extras/plan/stores.ts";

const KIB = 1024;
const MIB = 1024 * KIB;
const GB = 1e9;
/** Llama-3.1-8B in blocks of 16 tokens. */
const LLAMA: Block = { tokens: 16, bytes: 2 * MIB };
const sizeOf = (tokens: number): { bytes: number; tokens: number } => ({
  tokens,
  bytes: (tokens * LLAMA.bytes) / LLAMA.tokens,
});

/** From jemalloc's manual, with pages of 4 KiB. */
test.each([
  [5 * KIB + 1, 6 * KIB],
  [14 * KIB + 1, 16 * KIB],
  [16 * KIB, 16 * KIB],
  [16 * KIB + 1, 20 * KIB],
  [128 * KIB + 1, 160 * KIB],
  [160 * KIB, 160 * KIB],
  [MIB + 1, MIB + 256 * KIB],
  [7 * MIB - 1, 7 * MIB],
])("%i bytes take %i", (bytes, taken) => {
  expect(allocated(bytes)).toBe(taken);
});

test("a cluster has as many primaries as the memory of the records needs, and three at least", () => {
  const nodes = { bytes: 64 * GB, replicas: 1 };
  const { rows, factor } = forecastStores([LLAMA], [sizeOf(32_000), sizeOf(1_000_000)], nodes);
  expect(factor).toBeCloseTo(1.25, 3);
  const bytes = (1_000_000 / 16) * valkeyRecordBytes(LLAMA.bytes);
  expect(rows[1]!.valkeyBytes).toBeCloseTo(bytes, 0);
  expect(rows[1]).toMatchObject({ primaries: Math.ceil(bytes / nodes.bytes), nodes: 6 });
  expect(rows[0]).toMatchObject({ primaries: 3, nodes: 6 });
  const more = forecastStores([LLAMA], [sizeOf(10_000_000)], { bytes: 64 * GB, replicas: 2 });
  expect(more.rows[0]).toMatchObject({ primaries: 26, nodes: 78 });
});

test("without replicas one server does for what fits it, and a byte more takes a cluster", () => {
  const bytes = valkeyRecordBytes(LLAMA.bytes);
  const of = (node: number): number =>
    forecastStores([LLAMA], [sizeOf(16)], { bytes: node, replicas: 0 }).rows[0]!.nodes;
  expect([of(bytes), of(bytes - 1)]).toEqual([1, 3]);
});

test("a bucket has the records, their headers and indexes, in objects of at most 16 MiB", () => {
  const small: Block = { tokens: 16, bytes: 64 * KIB };
  const of = (block: Block): object =>
    forecastStores([block], [{ tokens: 16 * 16 * 10, bytes: 0 }], { bytes: GB, replicas: 1 })
      .rows[0]!;
  expect(of(small)).toMatchObject({
    bucketBytes: 160 * (64 * KIB + 192 + 44 + 1),
    bucketObjects: 10,
  });
  // Seven records of 2 MiB fit one object.
  expect(of(LLAMA)).toMatchObject({ bucketObjects: Math.ceil(160 / 7) });
  expect(of({ tokens: 16, bytes: 20 * MIB })).toMatchObject({ bucketObjects: 160 });
});

test("a prompt's restore from a bucket is an index and some ranges for each object", () => {
  // Ten objects: one range of 1 MiB each.
  expect(bucketRequests([{ tokens: 16, bytes: 64 * KIB }], 16 * 160)).toBe(20);
  // Two objects of seven records, of which a range of 4 MiB brings one.
  expect(bucketRequests([LLAMA], 16 * 14)).toBe(2 * 8);
});

test("the groups of a model with windows are records of their own", () => {
  const windows: Block = { tokens: 16, bytes: 48 * KIB };
  const { rows } = forecastStores([LLAMA, windows], [{ tokens: 16, bytes: 0 }], {
    bytes: GB,
    replicas: 0,
  });
  expect(rows[0]!.valkeyBytes).toBe(valkeyRecordBytes(2 * MIB) + valkeyRecordBytes(48 * KIB));
});
