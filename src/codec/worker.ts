// Owns the work of one encode thread: native encoding by descriptor; no payload byte passes through JavaScript.
import { toTierkvError } from "../base/errors.ts";
import { encodeSlots, outboxMake, weighSlot } from "../base/native.ts";
import type { CodecWeight } from "../base/native.ts";
import { nativeItems, unpacked } from "./task.ts";
import type { PackedTask, WeighTask } from "./task.ts";

/** Encodes all blocks of the task into the native outbox; returns pairs (outbox record, record bytes). */
export function encode(from: PackedTask): Float64Array {
  const task = unpacked(from);
  const { arena, geometry, codec, fidelity, namespace } = task;
  return coded(() =>
    encodeSlots(arena, geometry, codec, fidelity, Buffer.from(namespace), nativeItems(task)),
  );
}

/** Makes deferred records of the native outbox; returns each length, 0 where one cannot be made any more. */
export function make(records: Uint32Array): Float64Array {
  return coded(() => outboxMake(records));
}

/** Returns the weight of each codec on a slot. */
export function weigh({ arena, geometry, slot, generation, codecs }: WeighTask): CodecWeight[] {
  return coded(() => weighSlot(arena, geometry, slot, generation, Uint8Array.from(codecs)));
}

/** Errors keep their code in the message, because only the message survives the way between threads. */
function coded<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    const { code, message } = toTierkvError(error);
    throw new Error(`${code}: ${message}`, { cause: error });
  }
}
