// Owns the bytes that benches move: random bf16 numbers, hash chains, and whole records.
import { createHash } from "node:crypto";
import { ItemStatus, packKeys } from "../../dist/base/block.js";
import { outboxDrop, outboxPut, writeRecord } from "../../dist/base/native.js";
import { anchorOf } from "../../dist/pool/placement.js";

/** Sixteen bits each: any sign and mantissa, magnitude 0.5 to 2, so that every codec accepts them as numbers. */
const BF16_MASK = 0x80ff_80ff;
const BF16_ONE = 0x3f00_3f00;

/** Returns `bytes` (a multiple of 4) of bf16 numbers that depend on `seed` alone. */
export function noise(bytes, seed = 1) {
  const words = new Uint32Array(bytes / 4);
  let state = (Math.imul(seed, 0x9e37_79b9) | 1) >>> 0;
  for (let at = 0; at < words.length; at += 1) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[at] = (state & BF16_MASK) | BF16_ONE;
  }
  return Buffer.from(words.buffer);
}

export function digest(text) {
  return createHash("sha256").update(text).digest();
}

/** Returns a chain of block hashes: `[{ hash, parent, endTokens, anchor }]`. */
export function chain(name, count, tokens) {
  const hashes = Array.from({ length: count }, (_none, index) => digest(`${name} ${index}`));
  return hashes.map((hash, index) => ({
    hash,
    parent: hashes[index - 1] ?? Buffer.alloc(32),
    endTokens: (index + 1) * tokens,
    anchor: hashes[anchorOf(index)],
  }));
}

const OPAQUE = { codec: 0, recordClass: 1, fidelity: 0, layout: 1, dtype: 0, parts: 0 };
const ONE_SHARD = {
  group: 0,
  shard: 0,
  shardCount: 1,
  tokens: 16,
  layers: 1,
  heads: 0,
  dimK: 0,
  dimV: 0,
};

/** Returns raw records of `payloadBytes` each for a chain of blocks: `[{ key, record }]`. */
export function records(namespace, name, count, payloadBytes) {
  const step = 4096;
  const pool = noise(payloadBytes + step * 64);
  return chain(name, count, 16).map(({ hash, parent, endTokens }, index) => {
    const start = (index % 64) * step;
    const lengths = { payloadBytes, sourceBytes: payloadBytes };
    const identity = { namespace, blockHash: hash, parentHash: parent, endTokens };
    const payload = pool.subarray(start, start + payloadBytes);
    const record = writeRecord({ ...OPAQUE, ...ONE_SHARD, ...lengths, ...identity }, payload);
    return { key: packKeys(hash, 0, 0), record };
  });
}

/** Stores records of `records`. Throws unless all are accepted. */
export async function storeAll(client, namespace, items, timeoutMs) {
  const outgoing = items.map(({ key, record }) => ({
    key,
    record: { id: outboxPut(record), isDeferred: false, make: async () => {} },
  }));
  const statuses = await client.store(namespace, outgoing, timeoutMs);
  for (const { record } of outgoing) outboxDrop(record.id);
  if (statuses.some((status) => status !== ItemStatus.ACCEPTED)) throw new Error("not stored");
}
