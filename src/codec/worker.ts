// Owns the work of one encode thread: native encoding of a batch named by descriptor; no payload byte passes through JavaScript.
import { HASH_BYTES } from "../block.ts";
import { toTierkvError } from "../errors.ts";
import { encodeSlots } from "../native.ts";
import type { EncodeTask } from "./pool.ts";

/** Encodes all blocks of the task into the native outbox; returns pairs (outbox record, record bytes). */
export function encode(task: EncodeTask): Float64Array {
  const { slots, hashes } = task;
  const items = Array.from({ length: slots.length / 2 }, (_, index) => ({
    slot: slots[index * 2] ?? 0,
    generation: slots[index * 2 + 1] ?? 0,
    shard: task.shard,
    shardCount: task.shardCount,
    endTokens: task.endTokens[index] ?? 0,
    blockHash: hashAt(hashes, index * 2),
    parentHash: hashAt(hashes, index * 2 + 1),
  }));
  const { arena, geometry, codec, fidelity } = task;
  try {
    return encodeSlots(arena, geometry, codec, fidelity, Buffer.from(task.namespace), items);
  } catch (error) {
    // Only the message of an error survives the way between threads.
    const { code, message } = toTierkvError(error);
    throw new Error(`${code}: ${message}`, { cause: error });
  }
}

function hashAt(hashes: Uint8Array, index: number): Buffer {
  return Buffer.from(hashes.buffer, hashes.byteOffset + index * HASH_BYTES, HASH_BYTES);
}
