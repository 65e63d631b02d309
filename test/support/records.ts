// Owns valid records for tests: opaque pages of any length, with keys, hashes and payloads from a seed.
import { createCipheriv, createHash } from "node:crypto";
import { classNumber, packKeys } from "../../src/base/block.ts";
import type { RecordClass } from "../../src/base/block.ts";
import { writeRecord } from "../../src/base/native.ts";

export const HEADER_BYTES = 192;
export const NAMESPACE: Buffer = digest("namespace a");
export const OTHER_NAMESPACE: Buffer = digest("namespace b");

/** Returns 32 bytes that depend on `text` alone. */
export function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}

/** Returns bytes that look random, never repeat, and depend on `seed` alone. */
export function noise(bytes: number, seed: number): Buffer {
  const key = digest(`noise ${seed}`).subarray(0, 16);
  return createCipheriv("aes-128-ctr", key, Buffer.alloc(16)).update(Buffer.alloc(bytes));
}

/** Where blocks lie that one vault alone has. */
export const AT_FIRST = { vault: 0, second: null, archived: 0, source: null } as const;

export interface TestRecord {
  /** Packed key, 36 bytes. */
  key: Buffer;
  record: Buffer;
}

export interface RecordShape {
  payloadBytes?: number;
  namespace?: Buffer;
  recordClass?: RecordClass;
  group?: number;
  shard?: number;
  /** Block hash as an engine has it; default: the test's own. */
  blockHash?: Buffer;
}

/** Returns the `index`-th record of a test; the same index gives the same bytes. */
export function makeRecord(index: number, shape: RecordShape = {}): TestRecord {
  const { payloadBytes = 1000, namespace = NAMESPACE, recordClass = "kv" } = shape;
  const { group = 0, shard = 0 } = shape;
  const { blockHash = digest(`block ${index}`) } = shape;
  const record = writeRecord(
    {
      codec: 0,
      recordClass: classNumber(recordClass),
      fidelity: 0,
      layout: 1,
      group,
      shard,
      shardCount: shard + 1,
      dtype: 0,
      parts: 0,
      tokens: 16,
      layers: 1,
      heads: 0,
      dimK: 0,
      dimV: 0,
      endTokens: 16 * (index + 1),
      payloadBytes,
      sourceBytes: payloadBytes,
      namespace,
      blockHash,
      parentHash: index === 0 ? Buffer.alloc(32) : digest(`block ${index - 1}`),
    },
    noise(payloadBytes, index),
  );
  const key = packKeys(blockHash, group, shard);
  headers.set(nameOf(namespace, key), Buffer.from(record.subarray(0, HEADER_BYTES)));
  return { key, record };
}

const headers = new Map<string, Buffer>();
const nameOf = (namespace: Buffer, key: Buffer): string =>
  namespace.toString("latin1") + key.toString("latin1");

/** Returns the header of the record last made under this key; null: none. */
export function headerOf(namespace: Buffer, key: Buffer): Buffer | null {
  return headers.get(nameOf(namespace, key)) ?? null;
}

export function makeRecords(count: number, shape: RecordShape = {}): TestRecord[] {
  return Array.from({ length: count }, (_, index) => makeRecord(index, shape));
}

/** Returns the packed keys of `records`, in order. */
export function keysOf(records: readonly TestRecord[]): Buffer {
  return Buffer.concat(records.map(({ key }) => key));
}

/** Returns a copy of `bytes` with one bit flipped at `at` (negative: from the end). */
export function flipped(bytes: Buffer, at: number): Buffer {
  const copy = Buffer.from(bytes);
  const index = at < 0 ? copy.length + at : at;
  copy[index] = (copy[index] ?? 0) ^ 1;
  return copy;
}
