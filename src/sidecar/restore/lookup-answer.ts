// Owns the types of a look-up's answer: by group, which blocks are held and where to fetch each.
import type { RecordClass } from "../../block.ts";
import type { RunOffer } from "../slots/block.ts";
import type { LookupGate } from "../vaults/vaults.ts";

export interface LookupGroup {
  group: number;
  class: RecordClass;
  /** Block hashes, 32 bytes each. */
  hashes: Buffer;
  /** Above 0: only the last `tail` blocks are needed. */
  tail?: number;
}

/** One group's part. */
export interface GroupAnswer {
  /** Returns the cache key of the hash at an index. */
  keyOf(index: number): string;
  /** Bitmap of the blocks held with all shards, in the arena or by a source. */
  held: Buffer;
  /** Where to fetch each block, held or not, from the first on without a gap. */
  offers: readonly RunOffer[];
}

export interface LookupAnswer {
  /** In the order asked. */
  groups: readonly GroupAnswer[];
  /** Vaults that did not answer; their blocks count as not held. */
  silent: ReadonlySet<LookupGate>;
}
