// Owns cutting large requests into calls that a vault accepts; pure.
import { keyCount, PACKED_KEY_BYTES } from "../block.ts";
import type { FetchSegment } from "../wire/messages.ts";

/** Runs of at most `maxKeys` keys; views, not copies. */
export function splitKeys(keys: Buffer, maxKeys: number): Buffer[] {
  const parts: Buffer[] = [];
  for (let at = 0; at < keys.length; at += maxKeys * PACKED_KEY_BYTES) {
    parts.push(keys.subarray(at, at + maxKeys * PACKED_KEY_BYTES));
  }
  return parts;
}

export interface PlanPart {
  segments: FetchSegment[];
  /** Items of the whole plan before this part. */
  firstItem: number;
}

/** Parts of at most `maxKeys` keys each, in need order. */
export function splitPlan(segments: readonly FetchSegment[], maxKeys: number): PlanPart[] {
  const parts: PlanPart[] = [];
  let firstItem = 0;
  let part: PlanPart = { segments: [], firstItem };
  let room = maxKeys;
  for (const segment of segments) {
    const total = keyCount(segment.keys);
    for (let done = 0; done < total;) {
      const take = Math.min(room, total - done);
      const keys = segment.keys.subarray(done * PACKED_KEY_BYTES, (done + take) * PACKED_KEY_BYTES);
      part.segments.push({ ...segment, keys });
      done += take;
      firstItem += take;
      room -= take;
      if (room === 0) {
        parts.push(part);
        part = { segments: [], firstItem };
        room = maxKeys;
      }
    }
  }
  if (part.segments.length > 0) parts.push(part);
  return parts;
}

/** Runs of at most `maxItems` items and about `maxBytes` bytes; an item above `maxBytes` stands alone. */
export function splitBatch<Item>(
  items: readonly Item[],
  bytesOf: (item: Item) => number,
  maxItems: number,
  maxBytes: number,
): Item[][] {
  const batches: Item[][] = [];
  let batch: Item[] = [];
  let bytes = 0;
  for (const item of items) {
    const size = bytesOf(item);
    if (batch.length > 0 && (batch.length === maxItems || bytes + size > maxBytes)) {
      batches.push(batch);
      batch = [];
      bytes = 0;
    }
    batch.push(item);
    bytes += size;
  }
  if (batch.length > 0) batches.push(batch);
  return batches;
}
