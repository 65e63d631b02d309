// Owns the text of a packed key, which names a record or a block in maps.
import { HASH_BYTES, PACKED_KEY_BYTES, packKeys } from "./block.ts";

/** Characters of a packed key before its shard; they name the block by hash and group. */
const BLOCK_CHARS = PACKED_KEY_BYTES - 2;

/** Returns a character per byte of the packed key, then of the namespace. */
export function recordKey(namespace: Buffer, key: Buffer): string {
  return `${key.toString("latin1")}${namespace.toString("latin1")}`;
}

/** Names a block by its first shard's key. */
export function blockKey(namespace: Buffer, group: number, hash: Buffer): string {
  return blockKeys(namespace, group, hash)(0);
}

/** Returns the names of one group's blocks by index, from hashes of 32 bytes; the common part is made once. */
export function blockKeys(
  namespace: Buffer,
  group: number,
  hashes: Buffer,
): (index: number) => string {
  let [all, tail] = ["", ""];
  let named = 0;
  return (index) => {
    if (tail === "") tail = recordKey(namespace, packKeys(NO_HASH, group, 0)).slice(HASH_BYTES);
    named += 1;
    const [from, to] = [index * HASH_BYTES, (index + 1) * HASH_BYTES];
    // The text of all hashes is dear, and worth it for many of them.
    if (named <= NAMED_SINGLY) return hashes.toString("latin1", from, to) + tail;
    if (all === "") all = hashes.toString("latin1");
    return all.slice(from, to) + tail;
  };
}

/** Returns the part of a key's text that is the same in every namespace and for all shards. */
export function blockOf(key: string): string {
  return key.slice(0, BLOCK_CHARS);
}

/** Returns the same from a packed key. */
export function blockText(key: Buffer): string {
  return key.toString("latin1", 0, BLOCK_CHARS);
}

const NAMED_SINGLY = 64;
const NO_HASH = Buffer.alloc(HASH_BYTES);
