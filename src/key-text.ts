// Owns the text of a packed key: the one name that a record, or a block, has in maps.
import { HASH_BYTES, PACKED_KEY_BYTES, packKeys } from "./block.ts";

/** A packed key up to its shard names the block: hash and group. */
const BLOCK_CHARS = PACKED_KEY_BYTES - 2;

/** A character per byte of the packed key, then the namespace's. */
export function recordKey(namespace: Buffer, key: Buffer): string {
  return `${key.toString("latin1")}${namespace.toString("latin1")}`;
}

/** A block goes by its first shard's key. */
export function blockKey(namespace: Buffer, group: number, hash: Buffer): string {
  return blockKeys(namespace, group, hash)(0);
}

/** Of one group's blocks by index, from hashes of 32 bytes each: what all have in common is made once, with the first. */
export function blockKeys(
  namespace: Buffer,
  group: number,
  hashes: Buffer,
): (index: number) => string {
  let [all, tail] = ["", ""];
  return (index) => {
    if (all === "") {
      all = hashes.toString("latin1");
      tail = recordKey(namespace, packKeys(NO_HASH, group, 0)).slice(HASH_BYTES);
    }
    return all.slice(index * HASH_BYTES, (index + 1) * HASH_BYTES) + tail;
  };
}

/** The part of a key's text that is the same in every namespace, and for all shards. */
export function blockOf(key: string): string {
  return key.slice(0, BLOCK_CHARS);
}

/** The same of a packed key. */
export function blockText(key: Buffer): string {
  return key.toString("latin1", 0, BLOCK_CHARS);
}

const NO_HASH = Buffer.alloc(HASH_BYTES);
