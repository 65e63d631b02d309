// Owns what a look-up did not find: the reason for the first missing block, the gap behind it, and holes in the middle of a prompt.
import { countBits, HASH_BYTES, hasBit, hashAt, leadingBits, runEnd } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { blockKey } from "../../base/key-text.ts";
import type { MissReason } from "../socket/reasons.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { Pool, Pools } from "../vaults/pools.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";
import type { LookupAnswer, LookupGroup } from "./lookup-answer.ts";

export interface MissContext {
  pools: Pools;
  gates: LookupGates;
  outcomes: BlockOutcomes;
  /** Prompt tokens up to which everything needed is held. */
  tokens: number;
}

/** A group that was asked for, from block `from` on; with `tail` above 0 only its last blocks are needed. */
export type NeededGroup = LookupGroup & {
  from: number;
  tokens: number;
  tail: number;
  tenant: number;
};

/** Returns, in one word, why the first block to fetch is missing; null when none is. */
export function whyMissing(
  namespace: Namespace,
  groups: readonly NeededGroup[],
  { groups: answers, silent }: LookupAnswer,
  { pools, gates, outcomes, tokens }: MissContext,
): string | null {
  const miss = firstMiss(groups, answers);
  const troubleAt = (group: LookupGroup, index: number): MissReason | null => {
    const home = pools[group.class].ownerInPeace(group.hashes, index);
    return troubleOf(gates[group.class][home], silent);
  };
  const step = Math.max(...groups.map((group) => group.tokens));
  const last = groups.find(({ class: of }) => of === "ssm") ?? groups.find(({ tail }) => tail > 0);
  if (last === undefined || (miss !== null && miss.tokens < tokens + step)) {
    if (miss === null) return null;
    const { group, index } = miss;
    const key = blockKey(namespace, group.group, hashAt(group, index));
    return troubleAt(group, index) ?? outcomes.missReason(namespace, group, key);
  }
  const deepest = last.hashes.length / HASH_BYTES - 1;
  const held = answers[groups.indexOf(last)]?.held;
  const reason = troubleAt(last, Math.max(0, deepest));
  return reason ?? outcomeOfLast(namespace, last, tokens, { outcomes, held });
}

/**
 * Returns the outcome of the deepest missing state or window behind `tokens` that was ever offered, because most places never have
 * one. A block that is held is not missing: what is missing is the rest of its window.
 */
function outcomeOfLast(
  namespace: Namespace,
  group: NeededGroup,
  tokens: number,
  { outcomes, held }: { outcomes: BlockOutcomes; held: Buffer | undefined },
): string {
  const count = group.hashes.length / HASH_BYTES;
  for (let index = count - 1; index >= 0 && index * group.tokens >= tokens; index -= 1) {
    if (held !== undefined && hasBit(held, index)) continue;
    const key = blockKey(namespace, group.group, hashAt(group, index));
    const reason = outcomes.missReason(namespace, group, key);
    if (reason !== "never_stored") return reason;
  }
  const never: MissReason = group.class === "ssm" ? "state_not_handed_over" : "never_stored";
  return never;
}

function troubleOf(
  gate: LookupGate | undefined,
  silent: ReadonlySet<LookupGate>,
): MissReason | null {
  if (gate === undefined) return "no_vault";
  if (gate.isRefused) return "vault_refused";
  return silent.has(gate) || gate.state === "down" ? "vault_down" : null;
}

interface Miss {
  group: NeededGroup;
  index: number;
  /** Prompt tokens before the block. */
  tokens: number;
}

/** Returns the missing block nearest to the prompt's start, of the groups that need every block. */
function firstMiss(groups: readonly NeededGroup[], answers: LookupAnswer["groups"]): Miss | null {
  let first: Miss | null = null;
  for (const [at, asked] of groups.entries()) {
    const { hashes, from, tokens, tail } = asked;
    const bitmap = answers[at]?.held;
    if (bitmap === undefined || tail > 0) continue;
    const index = runEnd(bitmap, from, hashes.length / HASH_BYTES);
    if (index === hashes.length / HASH_BYTES) continue;
    if (first !== null && first.tokens <= index * tokens) continue;
    first = { group: asked, index, tokens: index * tokens };
  }
  return first;
}

export interface Gap {
  /** Address of the vault that owns the first missing block. */
  vault: string;
  /** Held blocks behind it. */
  behind: number;
}

/** Returns null when nothing is missing or the class has only one vault. */
export function gapOf(
  groups: readonly NeededGroup[],
  { groups: answers }: LookupAnswer,
  { pools, gates }: { pools: Pools; gates: LookupGates },
): Gap | null {
  const miss = firstMiss(groups, answers);
  if (miss === null) return null;
  const { group, index } = miss;
  const pool = pools[group.class];
  const vault = gates[group.class][pool.ownerInPeace(group.hashes, index)]?.address;
  if (pool.count < 2 || vault === undefined) return null;
  const bitmap = answers[groups.indexOf(group)]?.held ?? Buffer.alloc(0);
  const behind = countBits(bitmap, group.hashes.length / HASH_BYTES) - countBits(bitmap, index);
  return { vault, behind };
}

/** True where all held blocks are the first ones. */
export function isUnbroken(held: Buffer, count: number): boolean {
  return leadingBits(held, count) === countBits(held, count);
}

/**
 * Counts holes at the vaults that own them, for groups whose blocks need all blocks before them. A vault that stands in for one that
 * is down has none of its blocks, and no hole.
 */
export function countHoles(
  { class: recordClass, hashes, tail = 0 }: { class: RecordClass; hashes: Buffer; tail?: number },
  held: Buffer | undefined,
  { owners }: { owners: Uint8Array },
  { gates, pools }: { gates: LookupGates; pools: Record<RecordClass, Pick<Pool, "ownerInPeace">> },
  silent: ReadonlySet<LookupGate>,
): void {
  if (held === undefined || recordClass === "ssm" || tail > 0) return;
  const isAway = (gate: LookupGate): boolean =>
    silent.has(gate) || gate.isRefused || gate.state === "down";
  // With all vaults there the look-up's own owners are those in peace, and asking for each takes a pool 1.6 us.
  const isPeace = !gates[recordClass].some(isAway);
  const ownerOf = (index: number): number =>
    isPeace ? (owners[index] ?? 0) : pools[recordClass].ownerInPeace(hashes, index);
  let isBehind = false;
  for (let index = hashes.length / HASH_BYTES - 1; index >= 0; index -= 1) {
    if (hasBit(held, index)) isBehind = true;
    else if (isBehind) {
      const gate = gates[recordClass][ownerOf(index)];
      if (gate !== undefined && !isAway(gate)) gate.holes += 1;
    }
  }
}
