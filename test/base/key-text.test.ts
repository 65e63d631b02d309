// A record's and a block's name in maps say the same of the packed key.
import { expect, test } from "vitest";
import { hashAt, KeyPacker, keyAt, packKeys } from "../../src/base/block.ts";
import { blockKey, blockKeys, blockOf, blockText, recordKey } from "../../src/base/key-text.ts";

const NAMESPACE = Buffer.alloc(32, 7);
const HASHES = Buffer.from(Array.from({ length: 96 }, (_none, at) => (at * 37) % 256));
const hash = (index: number): Buffer => HASHES.subarray(index * 32, (index + 1) * 32);

test("a block goes by the key of its first shard, in whatever way it is made", () => {
  for (const [index, group] of [
    [0, 0],
    [2, 0x1234],
  ] as const) {
    const ofRecord = recordKey(NAMESPACE, packKeys(hash(index), group, 0));
    expect(blockKeys(NAMESPACE, group, HASHES)(index)).toBe(ofRecord);
    expect(blockKey(NAMESPACE, group, hash(index))).toBe(ofRecord);
  }
});

test("hash, group, shard and namespace tell records apart; the first two tell blocks apart", () => {
  const records = [packKeys(hash(0), 0, 0), packKeys(hash(1), 0, 0), packKeys(hash(0), 0x100, 0)];
  const other = packKeys(hash(0), 0, 0x100);
  const names = [...records, other].map((key) => recordKey(NAMESPACE, key));
  names.push(recordKey(Buffer.alloc(32, 8), other));
  expect(new Set(names).size).toBe(5);
  expect(new Set(names.map(blockOf)).size).toBe(3);
  expect(blockText(other)).toBe(blockOf(names[0] ?? ""));
});

test("keys packed word by word are those packed one by one, also from bytes that are not aligned", () => {
  const odd = Buffer.concat([Buffer.alloc(1), Buffer.from(HASHES).reverse()]).subarray(1);
  const packer = new KeyPacker(5);
  packer.add(HASHES, 1, 0x0102, 2);
  packer.add(odd, 2, 3, 2);
  packer.add(HASHES, 0, 0, 1);
  const of = (hashes: Buffer, index: number, group: number, shard: number): Buffer =>
    packKeys(hashAt({ hashes }, index), group, shard);
  const expected = [
    of(HASHES, 1, 0x0102, 0),
    of(HASHES, 1, 0x0102, 1),
    of(odd, 2, 3, 0),
    of(odd, 2, 3, 1),
    of(HASHES, 0, 0, 0),
  ];
  for (const [at, key] of expected.entries()) expect(keyAt(packer.keys, at)).toEqual(key);
});
