// Owns the description of blocks to encode, and its form as flat arrays for another thread, where only descriptors are copied.
import { HASH_BYTES } from "../base/block.ts";
import type { ArenaId, EncodeItem, GeometryId } from "../base/native.ts";

export interface EncodeBlock {
  slot: number;
  generation: number;
  /** 32 bytes. */
  hash: Buffer;
  /** Hash of the block before; zeros where there is none. */
  parent: Buffer;
  endTokens: number;
}

interface Batch {
  arena: ArenaId;
  geometry: GeometryId;
  codec: number;
  fidelity: number;
  namespace: Uint8Array;
  shard: number;
  shardCount: number;
}

/** One batch of blocks of one group and rank. */
export interface EncodeTask extends Batch {
  blocks: readonly EncodeBlock[];
}

/** The same for another thread. */
export interface PackedTask extends Batch {
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

export function packed({ blocks, ...batch }: EncodeTask): PackedTask {
  const slots = new Uint32Array(blocks.length * 2);
  const hashes = new Uint8Array(blocks.length * 2 * HASH_BYTES);
  const endTokens = new Float64Array(blocks.length);
  for (const [index, block] of blocks.entries()) {
    slots.set([block.slot, block.generation], index * 2);
    hashes.set(block.hash, index * 2 * HASH_BYTES);
    hashes.set(block.parent, (index * 2 + 1) * HASH_BYTES);
    endTokens[index] = block.endTokens;
  }
  return { ...batch, slots, hashes, endTokens };
}

export function unpacked({ slots, hashes, endTokens, ...batch }: PackedTask): EncodeTask {
  const blocks = Array.from({ length: slots.length / 2 }, (_, index) => ({
    slot: slots[index * 2] ?? 0,
    generation: slots[index * 2 + 1] ?? 0,
    hash: hashAt(hashes, index * 2),
    parent: hashAt(hashes, index * 2 + 1),
    endTokens: endTokens[index] ?? 0,
  }));
  return { ...batch, blocks };
}

/** Returns the blocks of a task in the native core's form. */
export function nativeItems({ blocks, shard, shardCount }: EncodeTask): EncodeItem[] {
  return blocks.map(({ slot, generation, hash: blockHash, parent: parentHash, endTokens }) => {
    return { slot, generation, shard, shardCount, endTokens, blockHash, parentHash };
  });
}

function hashAt(hashes: Uint8Array, index: number): Buffer {
  return Buffer.from(hashes.buffer, hashes.byteOffset + index * HASH_BYTES, HASH_BYTES);
}
