// Owns the texts that blocks are known by in an arena.
import { HASH_BYTES } from "../../block.ts";

export function blockKey(namespace: Buffer, group: number, hash: Buffer): string {
  return blockKeys(namespace, group, hash)(0);
}

/** Keys of one group's blocks by index, from hashes of 32 bytes each: what all have in common is made once, with the first. */
export function blockKeys(
  namespace: Buffer,
  group: number,
  hashes: Buffer,
): (index: number) => string {
  let [all, tail] = ["", ""];
  return (index) => {
    if (all === "") {
      all = hashes.toString("latin1");
      tail = `${namespace.toString("latin1")}${group}`;
    }
    return all.slice(index * HASH_BYTES, (index + 1) * HASH_BYTES) + tail;
  };
}
