// Owns the proof that any bytes make reading a batch of events fail in its own way, and that what is read is what a plain decoder reads.
import { decode, encode } from "@msgpack/msgpack";
import fc from "fast-check";
import { expect, test } from "vitest";
import { readBatch } from "../../../src/gateway/events/batch.ts";
import { hashOf, Reader } from "../../../src/gateway/events/reader.ts";
import { bytes, damage, meet, value } from "../../faults/lib/cases.ts";

const CASES = process.env["TIERKV_TEST_LONG"] === "on" ? 1_000_000 : 4000;
const LONG_MS = 1_200_000;

const token = fc.constantFrom(0, 1, 127, 128, 255, 256, 65_535, 65_536, 151_643, 2 ** 32 - 1);
const hash = fc.oneof(
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  fc.uint8Array({ minLength: 8, maxLength: 33 }),
  fc.nat(200),
);

/** As a release sends it, in either form, with fields that are left out or are new. */
const stored = fc
  .tuple(
    fc.integer({ min: 1, max: 20 }),
    fc.array(hash, { maxLength: 4 }),
    fc.infiniteStream(token),
  )
  .chain(([size, hashes, tokens]) =>
    fc.record({
      block_hashes: fc.constant(hashes),
      parent_block_hash: fc.oneof(fc.constant(null), hash),
      token_ids: fc.constant([...tokens.take(size * hashes.length)]),
      block_size: fc.constant(size),
      lora_id: fc.constant(null),
      medium: fc.constantFrom("GPU", "STORAGE", "CPU", null),
      lora_name: fc.constantFrom(null, "adapter"),
      extra_keys: fc.constantFrom(null, [["salt"], null]),
      group_idx: fc.nat(2),
      kv_cache_spec_kind: fc.constantFrom(null, "full_attention"),
      kv_cache_spec_sliding_window: fc.constant(null),
      locality: fc.constantFrom(null, "LOCAL"),
      ownership: fc.constantFrom(null, "tierkv", "fs"),
      session_id: fc.constantFrom(null, "chat-7"),
      // 0.33: tokens behind the blocks that their hashes cover.
      lookahead_token_ids: fc.constantFrom(null, [1, 2, 3], [[1], []]),
    }),
  )
  .map((fields) => ({ type: "BlockStored", ...fields }));
const removed = fc.record({
  type: fc.constant("BlockRemoved"),
  block_hashes: fc.array(hash, { maxLength: 4 }),
  medium: fc.constantFrom("GPU", "STORAGE"),
  group_idx: fc.nat(2),
});
const cleared = fc.constant({ type: "AllBlocksCleared" });
const plain = fc.constant({ type: "Another", new_field: [1, { deep: ["x"] }] });
const event = fc.oneof(stored, removed, cleared, plain);
const batch = fc
  .tuple(fc.array(event, { maxLength: 4 }), fc.boolean())
  .map(([events, isPositional]) => {
    const shaped = isPositional
      ? events.map(({ type, ...fields }) => [type, ...(Object.values(fields) as unknown[])])
      : events;
    return Buffer.from(encode([1.5, shaped, 0], { useBigInt64: true }));
  });

/** Hashes that went, and hashes and tokens that came. */
function expectedOf(one: unknown): unknown[] {
  const fields = Array.isArray(one) ? fromArray(one) : (one as Record<string, unknown>);
  const { type, block_hashes: hashes, medium, token_ids: tokens, block_size: size } = fields;
  if (medium !== "GPU" && medium !== "STORAGE" && medium !== null) return [];
  // Blocks of another program's storage are none of a vault.
  if (medium === "STORAGE" && fields["ownership"] === "fs") return [];
  if (type !== "BlockRemoved" && type !== "BlockStored") return [];
  const list = hashes as unknown[];
  if (type === "BlockRemoved") return list.map(hashOf);
  const count = size as number;
  const all = tokens as number[];
  return list.map((each, at) => [hashOf(each), ...all.slice(at * count, (at + 1) * count)]);
}

function fromArray([type, block_hashes, ...rest]: unknown[]): Record<string, unknown> {
  if (type === "BlockRemoved") return { type, block_hashes, medium: rest[0] };
  const [, token_ids, block_size, , medium] = rest;
  return { type, block_hashes, token_ids, block_size, medium, ownership: rest[11] };
}

/** Whether it was taken; it must not fail otherwise than by an Error of its own or of its decoder. */
function isRead(payload: Uint8Array): boolean {
  try {
    return readBatch(payload).skipped === null;
  } catch (error) {
    expect(error).toBeInstanceOf(Error);
    expect((error as Error).message).not.toMatch(/undefined|not a function|Invalid array length/);
    return false;
  }
}

test(
  "F47 hashes and tokens are those that a plain decoder reads",
  async () => {
    await meet(CASES, batch, [], (payload) => {
      const [, sent] = decode(payload, { useBigInt64: true }) as [number, unknown[]];
      const told = readBatch(payload).events.flatMap((one): unknown[] => {
        if (one.kind === "cleared" || one.kind === "named") return [];
        if (one.kind === "removed") return one.hashes;
        return one.blocks.map((block) => [block.hash, ...block.tokens]);
      });
      const expected = sent.flatMap((one) => expectedOf(one));
      expect(told).toEqual(expected);
    });
  },
  LONG_MS,
);

test(
  "F47 damaged batches and any bytes are refused, or read as batches",
  async () => {
    let whole = 0;
    const damaged = fc.tuple(batch, damage).map(([good, how]) => how(good));
    await meet(CASES, fc.oneof({ weight: 4, arbitrary: damaged }, bytes(200)), [], (payload) => {
      if (isRead(payload)) whole += 1;
    });
    expect(whole).toBeGreaterThan(0);
    expect(whole).toBeLessThan(CASES);
  },
  LONG_MS,
);

test("any value is skipped to its very end, and a list that says more than it has allocates nothing", async () => {
  await meet(CASES, value, [], (one) => {
    const payload = encode([one, 7], { useBigInt64: true });
    const reader = new Reader(payload);
    expect(reader.array()).toBe(2);
    reader.skip();
    expect(reader.value()).toBe(7);
  });
  // Of kinds that nothing here is encoded as: type, length, and the bytes behind.
  for (const [head, behind] of [
    [[0xc7, 3], 4],
    [[0xc8, 0, 3], 4],
    [[0xc9, 0, 0, 0, 3], 4],
    [[0xc4, 3], 3],
    [[0xc5, 0, 3], 3],
    [[0xc6, 0, 0, 0, 3], 3],
    [[0xda, 0, 3], 3],
    [[0xdb, 0, 0, 0, 3], 3],
    [[0xdd, 0, 0, 0, 3], 3],
    [[0xdf, 0, 0, 0, 1], 2],
    ...[0xd4, 0xd5, 0xd6, 0xd7, 0xd8].map((type, at) => [[type], 1 + 2 ** at]),
    ...[0xca, 0xcb, 0xd0, 0xd1, 0xd2, 0xd3].map((type, at) => [[type], [4, 8, 1, 2, 4, 8][at]]),
  ] as [number[], number][]) {
    const reader = new Reader(Buffer.from([0x92, ...head, ...Array<number>(behind).fill(1), 7]));
    expect(reader.array()).toBe(2);
    reader.skip();
    expect(reader.value(), String(head)).toBe(7);
  }
  const lying = Buffer.from([0xdd, 0xff, 0xff, 0xff, 0xff, 1]);
  expect(() => new Reader(lying).numbers()).toThrow("cut off");
  expect(() => new Reader(lying).hashes()).toThrow("cut off");
  expect(() => new Reader(lying).skip()).toThrow(RangeError);
});

test("an odd event of stored blocks costs that event alone; an odd removal is refused", () => {
  const good = { type: "BlockStored", block_hashes: [1], token_ids: [5], block_size: 1 };
  // As vLLM's own file tier publishes its blocks, and a list that ends the reading of its event half-way.
  for (const odd of [
    { ...good, medium: "STORAGE", token_ids: [], block_size: 0 },
    { ...good, block_hashes: [1.5], token_ids: [6] },
  ]) {
    const payload = encode([0, [good, odd, { ...good, block_hashes: [2] }], 0]);
    const { events, skipped } = readBatch(payload);
    const hashes = events.map((one) => (one.kind === "stored" ? one.blocks[0]!.hash : null));
    expect(hashes).toEqual([1n, 2n]);
    expect(skipped).not.toBeNull();
  }
  const gone = { type: "BlockRemoved", block_hashes: [1.5] };
  expect(() => readBatch(encode([0, [good, gone], 0]))).toThrow(Error);
});

test("only tierKV's own blocks of the storage tier count as a vault's", () => {
  const good = { type: "BlockStored", block_hashes: [1], token_ids: [5], block_size: 1 };
  const tierOf = (more: object): string | undefined => {
    const [read] = readBatch(encode([0, [{ ...good, medium: "STORAGE", ...more }], 0])).events;
    return read?.kind === "stored" ? read.tier : undefined;
  };
  expect([tierOf({}), tierOf({ ownership: "tierkv" }), tierOf({ ownership: "fs" })]).toEqual([
    "vault",
    "vault",
    undefined,
  ]);
});

test("events that lack what they need are refused", () => {
  const good = { type: "BlockStored", block_hashes: [1], token_ids: [5], block_size: 1 };
  const isTaken = (changed: object): boolean => isRead(encode([0, [{ ...good, ...changed }], 0]));
  expect(isTaken({})).toBe(true);
  for (const changed of [
    { token_ids: ["x"] },
    { token_ids: [5, 6] },
    { token_ids: null },
    { block_hashes: null },
    { block_hashes: [1.5] },
    { block_hashes: ["1"] },
    { block_size: 0 },
  ]) {
    expect(isTaken(changed), JSON.stringify(changed)).toBe(false);
  }
});
