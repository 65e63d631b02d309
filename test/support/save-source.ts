// Owns a stand-in for the source of saved blocks: one group of one worker, whose slots are only counted.
import type { ArenaId, GeometryId } from "../../src/base/native.ts";
import type { SaveSource } from "../../src/sidecar/save/source.ts";

/** Makes blocks of `sourceBytes`; slots that are done go to `finished`. */
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
