// Owns the boundary of a plan: the deepest place in the prompt that every group can be restored to, and the blocks which that takes.
import { HASH_BYTES, hasBit } from "../block.ts";
import type { LookupAnswer } from "./lookup.ts";
import type { DoneReason, PrefetchGroup } from "./messages.ts";
import type { Wish } from "./plan.ts";

/** What a group needs before a boundary. */
export interface GroupShape {
  /** Per block. */
  tokens: number;
  /** How many of its last blocks: 1 for a recurrent state, those a sliding window reaches; 0: all of them. */
  tail: number;
}

export interface Boundary {
  /** Prompt tokens before it; where nothing can be restored, those the engine has itself. */
  tokens: number;
  /** Per group, in the order asked, the blocks to fetch. */
  wishes: Wish[];
}

export type Asked = PrefetchGroup & GroupShape & { tenant: number };

/**
 * Every group ends a block at the boundary, and everything a group needs before it is held, from its index `from` on.
 * The blocks of all groups together are no more than `capacity`.
 */
export function chooseBoundary(
  groups: readonly Asked[],
  answer: LookupAnswer,
  capacity: number,
): Boundary {
  const step = groups.reduce((common, { tokens }) => leastCommonMultiple(common, tokens), 1);
  const start = Math.max(...groups.map(({ from, tokens }) => from * tokens));
  const ends = groups.map(({ hashes, tokens }) => (hashes.length / HASH_BYTES) * tokens);
  const asked = Math.max(start, Math.floor(Math.min(...ends) / step) * step);
  const runs = groups.map((group, index) => heldRun(answer.held[index] ?? NONE, group));
  const isHeld = (at: number): boolean =>
    groups.every((group, index) => {
      const end = at / group.tokens;
      return group.tail === 0
        ? end <= group.from + (runs[index] ?? 0)
        : areHeld(answer.held[index] ?? NONE, firstOf(group, end), end);
    });
  const needed = (at: number): number =>
    groups.reduce((sum, group) => sum + at / group.tokens - firstOf(group, at / group.tokens), 0);

  let held = asked;
  while (held > start && !isHeld(held)) held -= step;
  held = Math.max(held, start);
  let tokens = held;
  while (tokens > start && (needed(tokens) > capacity || !isHeld(tokens))) tokens -= step;
  tokens = Math.max(tokens, start);

  const cut = cutReason(tokens, held, asked, answer.isVaultDown);
  return {
    tokens,
    wishes: groups.map((group, index) => wishOf(group, answer.keys[index] ?? [], tokens, cut)),
  };
}

const NONE = Buffer.alloc(0);
const NO_PARENT = Buffer.alloc(HASH_BYTES);

/** First block that is needed for a boundary at block `end`. */
function firstOf({ from, tail }: Asked, end: number): number {
  return tail === 0 ? Math.min(from, end) : Math.max(Math.min(from, end), end - tail);
}

function wishOf(group: Asked, keys: readonly string[], tokens: number, cut: Wish["cut"]): Wish {
  const end = tokens / group.tokens;
  const first = firstOf(group, end);
  return {
    group: group.group,
    recordClass: group.class,
    first,
    keys: keys.slice(first, end),
    hashes: group.hashes.subarray(first * HASH_BYTES, end * HASH_BYTES),
    parent:
      first === 0 ? NO_PARENT : group.hashes.subarray((first - 1) * HASH_BYTES, first * HASH_BYTES),
    tenant: group.tenant,
    cut,
  };
}

/** How many bits are set from `from` on without a gap. */
function heldRun(held: Buffer, { from, hashes }: Asked): number {
  const count = hashes.length / HASH_BYTES;
  let end = from;
  while (end < count && hasBit(held, end)) end += 1;
  return end - from;
}

function areHeld(held: Buffer, first: number, end: number): boolean {
  for (let index = first; index < end; index += 1) if (!hasBit(held, index)) return false;
  return true;
}

function cutReason(
  tokens: number,
  held: number,
  asked: number,
  isVaultDown: boolean,
): DoneReason | null {
  if (tokens < held) return "no_slot";
  if (held === asked) return null;
  return isVaultDown ? "vault_down" : "end_of_hit";
}

function leastCommonMultiple(a: number, b: number): number {
  let [high, low] = [a, b];
  while (low > 0) [high, low] = [low, high % low];
  return (a / high) * b;
}
