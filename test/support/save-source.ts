// Owns a stand-in for where saved blocks come from: one group of one worker, whose slots are only counted.
import type { ArenaId, GeometryId } from "../../src/native.ts";
import type { SaveSource } from "../../src/sidecar/save/source.ts";

/** Blocks of `sourceBytes`; slots that are of no use any more go to `finished`. */
export function saveSource(sourceBytes: number, finished: number[], isShort = false): SaveSource {
  return {
    arena: 1 as ArenaId,
    geometry: 1 as GeometryId,
    recordClass: "kv",
    group: 0,
    shard: 0,
    shardCount: 1,
    tokens: 16,
    sourceBytes,
    finish: (slot) => finished.push(slot),
    onBatch: () => {},
    isShort: () => isShort,
    isWorthSaving: () => true,
  };
}
