// Owns the description of blocks to encode, as flat arrays, because passing one to a thread copies only descriptors.
import { HASH_BYTES } from "../base/block.ts";
import type { ArenaId, EncodeItem, GeometryId } from "../base/native.ts";

/** One batch of blocks of one group and rank. */
export interface EncodeTask {
  arena: ArenaId;
  geometry: GeometryId;
  codec: number;
  fidelity: number;
  namespace: Uint8Array;
  shard: number;
  shardCount: number;
  /** Pairs (slot, generation). */
  slots: Uint32Array;
  /** Per block: its hash, then its parent's. */
  hashes: Uint8Array;
  endTokens: Float64Array;
}

/** A leased slot to try codecs on. */
export interface WeighTask {
  arena: ArenaId;
  geometry: GeometryId;
  slot: number;
  generation: number;
  codecs: readonly number[];
}

export interface EncodeBlock {
  slot: number;
  generation: number;
  hash: Uint8Array;
  parent: Uint8Array;
  endTokens: number;
}

/** The parts of a task that belong to its blocks. */
export function packBlocks(
  blocks: readonly EncodeBlock[],
): Pick<EncodeTask, "slots" | "hashes" | "endTokens"> {
  const slots = new Uint32Array(blocks.length * 2);
  const hashes = new Uint8Array(blocks.length * 2 * HASH_BYTES);
  const endTokens = new Float64Array(blocks.length);
  blocks.forEach((block, index) => {
    slots.set([block.slot, block.generation], index * 2);
    hashes.set(block.hash, index * 2 * HASH_BYTES);
    hashes.set(block.parent, (index * 2 + 1) * HASH_BYTES);
    endTokens[index] = block.endTokens;
  });
  return { slots, hashes, endTokens };
}

/** Returns the blocks of a task in the native core's form. */
export function nativeItems({
  slots,
  hashes,
  endTokens,
  shard,
  shardCount,
}: EncodeTask): EncodeItem[] {
  return Array.from({ length: slots.length / 2 }, (_, index) => ({
    slot: slots[index * 2] ?? 0,
    generation: slots[index * 2 + 1] ?? 0,
    shard,
    shardCount,
    endTokens: endTokens[index] ?? 0,
    blockHash: hashAt(hashes, index * 2),
    parentHash: hashAt(hashes, index * 2 + 1),
  }));
}

function hashAt(hashes: Uint8Array, index: number): Buffer {
  return Buffer.from(hashes.buffer, hashes.byteOffset + index * HASH_BYTES, HASH_BYTES);
}
