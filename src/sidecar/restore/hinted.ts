// Owns what hints to the vaults are made of: the groups of a look-up with their shapes, how far they are held, and keys of all shards.
import { HASH_BYTES, hasBit, PACKED_KEY_BYTES, packKey } from "../../block.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import type { LookupGates } from "../vaults/vaults.ts";
import type { GroupShape } from "./boundary.ts";
import type { LookupGroup } from "./lookup.ts";

export interface HintOptions {
  shards: number;
  gates: LookupGates;
  counters: SidecarCounters;
  logger: Logger;
}

/** `from`: the first block that the engine has not itself. */
export type AskedGroup = LookupGroup & GroupShape & { from: number };

/** Blocks that were asked for. */
export function blocksOf({ hashes }: LookupGroup): number {
  return hashes.length / HASH_BYTES;
}

/** The first block that neither the engine nor a vault holds; `blocksOf` when there is none. */
export function firstHole(group: AskedGroup, held: Buffer): number {
  let index = group.from;
  while (index < blocksOf(group) && hasBit(held, index)) index += 1;
  return index;
}

/** Packed keys of these blocks, each of all shards. */
export function packShards(
  { hashes, group }: LookupGroup,
  indexes: readonly number[],
  shards: number,
): Buffer {
  const packed = Buffer.allocUnsafe(indexes.length * shards * PACKED_KEY_BYTES);
  let at = 0;
  for (const index of indexes) {
    for (let shard = 0; shard < shards; shard += 1) {
      at = packKey(packed, at, hashes, index, group, shard);
    }
  }
  return packed;
}
