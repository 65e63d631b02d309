// Owns the place in a pool where a restore ended: whose the first missing block is, and how much lies behind it.
import { countBits, HASH_BYTES } from "../../block.ts";
import type { Pools } from "../vaults/pools.ts";
import type { LookupGates } from "../vaults/vaults.ts";
import { firstMiss } from "./lookup.ts";
import type { LookupAnswer, NeededGroup } from "./lookup.ts";

export interface Gap {
  /** Address of the vault that the first missing block belongs to. */
  vault: string;
  /** Blocks behind it that are held. */
  behind: number;
}

/** null: nothing is missing, or there is one vault only. */
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
