// Owns the proof that any bytes are refused or read as a batch of events, and that the index then holds what a plain decoder reads.
import { decode, encode } from "@msgpack/msgpack";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { IndexReport } from "../../../src/base/native.ts";
import { BlockIndex } from "../../../src/gateway/index/index-of-blocks.ts";
import { bytes, damage, meet, value } from "../../faults/lib/cases.ts";
import { believed } from "../../support/kv-batches.ts";

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

type Fields = Record<string, unknown>;

const hashOf = (sent: unknown): bigint =>
  sent instanceof Uint8Array
    ? Buffer.from(sent).readBigUInt64BE(sent.length - 8)
    : BigInt.asUintN(64, BigInt(sent as number | bigint));

function fieldsOf(sent: unknown): Fields {
  if (!Array.isArray(sent)) return sent as Fields;
  const [type, block_hashes, ...rest] = sent as unknown[];
  if (type === "BlockRemoved") return { type, block_hashes, medium: rest[0], group_idx: rest[1] };
  const [, token_ids, block_size, , medium, , , group_idx] = rest;
  return { type, block_hashes, token_ids, block_size, medium, group_idx, ownership: rest[11] };
}

/** Blocks of another medium, or of another program's storage, are none of an engine's or a vault's. */
const isForeign = ({ medium, ownership }: Fields): boolean =>
  medium === "CPU" || (medium === "STORAGE" && ownership === "fs");

/** Blocks that are held after these events, each with its tier and group. */
function heldAfter(events: readonly unknown[]): string[] {
  const counts = new Map<string, number>();
  const change = (key: string, by: number, most: number): void => {
    const count = Math.min(most, (counts.get(key) ?? 0) + by);
    if (count > 0) counts.set(key, count);
    else counts.delete(key);
  };
  for (const fields of events.map((sent) => fieldsOf(sent))) {
    const { type, block_hashes: hashes, medium, group_idx: group } = fields;
    if (type === "AllBlocksCleared") {
      for (const key of counts.keys()) if (key.startsWith("0 ")) counts.delete(key);
    }
    const by = new Map<unknown, number>([
      ["BlockStored", 1],
      ["BlockRemoved", -1],
    ]).get(type);
    if (by === undefined || isForeign(fields)) continue;
    const [tier, most] = medium === "STORAGE" ? [1, 1] : [0, Infinity];
    for (const one of hashes as unknown[])
      change(`${tier} ${Number(group)} ${hashOf(one)}`, by, most);
  }
  return [...counts.keys()].sort();
}

/** Reads them from what the index would save. */
function heldBy(index: BlockIndex): string[] {
  const saved = index.save(0);
  let at = 16;
  const next = (): bigint => saved.readBigUInt64LE((at += 8) - 8);
  const found: string[] = [];
  for (let shelves = next(); shelves > 0n; shelves -= 1n) {
    const [tier, group] = [next(), next()];
    at += 24;
    for (let count = next(); count > 0n; count -= 1n) found.push(`${tier} ${group} ${next()}`);
  }
  return found.sort();
}

function read(payload: Uint8Array, index = new BlockIndex(1)): IndexReport | null {
  return index.apply(0, Buffer.from(payload));
}

test(
  "F47 what is held is what a plain decoder reads",
  async () => {
    await meet(CASES, batch, [], (payload) => {
      const [, sent] = decode(payload, { useBigInt64: true }) as [number, unknown[]];
      const index = new BlockIndex(1);
      const report = read(payload, index);
      expect([report?.lost, report?.skipped]).toEqual([undefined, undefined]);
      expect(heldBy(index)).toEqual(heldAfter(sent));
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
      const report = read(payload);
      expect(`${report?.lost} ${report?.skipped}`).not.toMatch(/gave up/);
      if (report?.lost === undefined && report?.skipped === undefined) whole += 1;
    });
    expect(whole).toBeGreaterThan(0);
    expect(whole).toBeLessThan(CASES);
  },
  LONG_MS,
);

/** A batch whose only event has a field that nobody reads, of these bytes, and then a block. */
function behind(field: Uint8Array): Buffer {
  const [type, hashes, tokens] = ["type", "block_hashes", "token_ids"].map((word) => encode(word));
  const more = [encode("later"), field, hashes!, encode([7]), tokens!, encode([5])];
  const size = [encode("block_size"), encode(1)];
  const parts = [[0x85], type!, encode("BlockStored"), ...more, ...size];
  return Buffer.concat([[0x92, 0, 0x91], ...parts].map((part) => Buffer.from(part)));
}

test("any value is skipped to its very end, and a list that says more than it has allocates nothing", async () => {
  const isWhole = (field: Uint8Array): void => {
    const index = new BlockIndex(1);
    expect(read(behind(field), index), Buffer.from(field).toString("hex")).toBeNull();
    expect(heldBy(index)).toEqual(["0 0 7"]);
  };
  await meet(CASES, value, [], (one) => isWhole(encode(one, { useBigInt64: true })));
  // Of kinds that nothing here is encoded as: type, length, and the bytes behind.
  for (const [head, rest] of [
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
    isWhole(Buffer.from([...head, ...Array<number>(rest).fill(1)]));
  }
  const lying = Buffer.from([0xdd, 0xff, 0xff, 0xff, 0xff, 1]);
  expect(read(behind(lying))?.lost).toMatch(/middle of a value|cut off/);
  expect(read(Buffer.concat([Buffer.from([0x92, 0]), lying]))?.lost).toBe("no batch of events");
});

test("an odd event of stored blocks costs that event alone; an odd removal is refused", () => {
  const good = { type: "BlockStored", block_hashes: [1], token_ids: [5], block_size: 1 };
  // As vLLM's own file tier publishes its blocks, and a list that ends the reading of its event half-way.
  for (const odd of [
    { ...good, medium: "STORAGE", token_ids: [], block_size: 0 },
    { ...good, block_hashes: [1.5], token_ids: [6] },
  ]) {
    const index = new BlockIndex(1);
    const payload = encode([0, [good, odd, { ...good, block_hashes: [2] }], 0]);
    expect(read(payload, index)?.skipped).toBeTypeOf("string");
    expect(heldBy(index)).toEqual(["0 0 1", "0 0 2"]);
  }
  const gone = { type: "BlockRemoved", block_hashes: [1.5] };
  expect(read(encode([0, [good, gone], 0]))?.lost).toBe("a hash is neither a number nor bytes");
});

test("only tierKV's own blocks of the storage tier count as a vault's", () => {
  const good = { type: "BlockStored", block_hashes: [1], token_ids: [5], block_size: 1 };
  const heldWith = (more: object): string[] => {
    const index = new BlockIndex(1);
    expect(read(encode([0, [{ ...good, medium: "STORAGE", ...more }], 0]), index)).toBeNull();
    return heldBy(index);
  };
  expect([heldWith({}), heldWith({ ownership: "tierkv" }), heldWith({ ownership: "fs" })]).toEqual([
    ["1 0 1"],
    ["1 0 1"],
    [],
  ]);
});

test("events that lack what they need are skipped, and an adapter tells blocks apart", () => {
  const good = { type: "BlockStored", block_hashes: [1], token_ids: [5], block_size: 1 };
  const isTaken = (changed: object): boolean =>
    read(encode([0, [{ ...good, ...changed }], 0]))?.skipped === undefined;
  expect(isTaken({})).toBe(true);
  for (const changed of [
    { token_ids: ["x"] },
    { token_ids: [5, 6] },
    { token_ids: null },
    { block_hashes: null },
    { block_hashes: [1.5] },
    { block_hashes: ["1"] },
    { block_size: 0 },
    { block_size: -1 },
    { group_idx: 1e6 },
  ]) {
    expect(isTaken(changed), JSON.stringify(changed)).toBe(false);
  }
  const index = new BlockIndex(1);
  index.trust(0, true);
  read(encode([0, [{ ...good, lora_name: "adapter" }], 0]), index);
  expect(believed(index, [0], [5], 1)).toEqual([0]);
  read(encode([0, [{ ...good, block_hashes: [2] }], 0]), index);
  expect(believed(index, [0], [5], 1)).toEqual([1]);
});
