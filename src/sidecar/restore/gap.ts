// Owns the gap at which a restore from a pool ended: the vault of the first missing block, and the held blocks behind it.
import { countBits, HASH_BYTES } from "../../base/block.ts";
import type { Pools } from "../vaults/pools.ts";
import type { LookupGates } from "../vaults/vaults.ts";
import { firstMiss } from "./lookup.ts";
import type { LookupAnswer, NeededGroup } from "./lookup.ts";

export interface Gap {
  /** Address of the vault that owns the first missing block. */
  vault: string;
  /** Held blocks behind it. */
  behind: number;
}

/** Returns null when nothing is missing or the class has only one vault. */
export function gapOf(
  groups: readonly NeededGroup[],
  { held }: LookupAnswer,
  { pools, gates }: { pools: Pools; gates: LookupGates },
): Gap | null {
  const miss = firstMiss(groups, held);
  if (miss === null) return null;
  const { group, index } = miss;
  const pool = pools[group.class];
  const vault = gates[group.class][pool.ownerInPeace(group.hashes, index)]?.address;
  if (pool.count < 2 || vault === undefined) return null;
  const bitmap = held[groups.indexOf(group)] ?? Buffer.alloc(0);
  const behind = countBits(bitmap, group.hashes.length / HASH_BYTES) - countBits(bitmap, index);
  return { vault, behind };
}
