// Owns cutting large requests into calls that a vault accepts; pure.
import { PACKED_KEY_BYTES } from "../base/block.ts";

/** Runs of at most `maxKeys` keys; views, not copies. */
export function splitKeys(keys: Buffer, maxKeys: number): Buffer[] {
  const parts: Buffer[] = [];
  for (let at = 0; at < keys.length; at += maxKeys * PACKED_KEY_BYTES) {
    parts.push(keys.subarray(at, at + maxKeys * PACKED_KEY_BYTES));
  }
  return parts;
}
