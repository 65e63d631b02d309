// Owns the choice of a plan's boundary: the deepest prompt position that all groups can be restored to, and the blocks it needs.
import { HASH_BYTES, hasBit, runEnd } from "../../base/block.ts";
import type { RunOffer } from "../slots/block.ts";
import type { PrefetchGroup } from "../socket/asked.ts";
import type { DoneReason, Prefetch } from "../socket/messages.ts";
import type { LookupAnswer } from "./lookup-answer.ts";
import type { GroupRange } from "./plan.ts";

/** Shape of a group, as far as a boundary depends on it. */
export interface GroupShape {
  /** Tokens per block. */
  tokens: number;
  /** Blocks needed before a boundary: 1 for a recurrent state, the window's blocks for a sliding window, 0 for all. */
  tail: number;
}

export interface Boundary {
  /** Prompt tokens before the boundary; where nothing can be restored, the engine's own cached tokens. */
  tokens: number;
  /** Prompt tokens up to which blocks are held; more than `tokens` where `capacity` is too small. */
  heldTokens: number;
  /** Blocks to fetch, per group in the order asked. */
  ranges: GroupRange[];
}

export type Asked = PrefetchGroup & GroupShape & { tenant: number };

export function askedOf(
  { groups, tenant }: Pick<Prefetch, "groups" | "tenant">,
  shapeOf: (group: number) => GroupShape,
): Asked[] {
  return groups.map(({ group, class: of, hashes, from }) => {
    const { tokens, tail } = shapeOf(group);
    return { group, class: of, hashes, from, tokens, tail, tenant };
  });
}

/**
 * Chooses the deepest boundary at which every group ends a block and holds all it needs from index `from` on. All groups together
 * take at most `capacity` blocks.
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
  const isHeld = groups.every(({ tail }) => tail === 0) ? null : heldAt(groups, answer);
  const most = isHeld === null ? firstGap(groups, answer) : asked;
  let held = Math.max(start, Math.min(asked, Math.floor(most / step) * step));
  while (held > start && isHeld?.(held) === false) held -= step;
  held = Math.max(held, start);
  let tokens = held;
  const isFit = (at: number): boolean =>
    blocksNeeded(groups, at) <= capacity && isHeld?.(at) !== false;
  while (tokens > start && !isFit(tokens)) tokens -= step;
  tokens = Math.max(tokens, start);

  const cut = cutReason(tokens, held, asked, answer.silent.size > 0);
  return {
    tokens,
    heldTokens: held,
    ranges: groups.map((group, index) => rangeOf(group, answer.groups[index], tokens, cut)),
  };
}

/** Returns the prompt tokens before the first missing block, of groups that need every block from their own cached ones on. */
function firstGap(groups: readonly Asked[], { groups: answers }: LookupAnswer): number {
  const ends = groups.map(({ hashes, from, tokens }, index) => {
    const held = answers[index]?.held ?? NONE;
    return runEnd(held, from, hashes.length / HASH_BYTES) * tokens;
  });
  return Math.min(...ends);
}

/** Returns whether every group holds all it needs for a boundary at `at` tokens. */
function heldAt(groups: readonly Asked[], answer: LookupAnswer): (at: number) => boolean {
  const reach = groups.map((group, index) => reachOf(answer.groups[index]?.held ?? NONE, group));
  return (at) =>
    groups.every((group, index) => {
      const end = at / group.tokens;
      return (reach[index]?.[end] ?? end) <= firstOf(group, end);
    });
}

const NONE = Buffer.alloc(0);
const NO_PARENT = Buffer.alloc(HASH_BYTES);

/** Returns how many blocks of all groups a restore up to `at` takes. */
export function blocksNeeded(groups: readonly Asked[], at: number): number {
  return groups.reduce(
    (sum, group) => sum + at / group.tokens - firstOf(group, at / group.tokens),
    0,
  );
}

/** Returns the first block that a boundary at block `end` needs. */
function firstOf({ from, tail }: Asked, end: number): number {
  return tail === 0 ? Math.min(from, end) : Math.max(Math.min(from, end), end - tail);
}

function rangeOf(
  group: Asked,
  answer: LookupAnswer["groups"][number] | undefined,
  tokens: number,
  cut: GroupRange["cut"],
): GroupRange {
  // No further than its hashes, which another group's own blocks may exceed.
  const end = Math.min(tokens / group.tokens, group.hashes.length / HASH_BYTES);
  const first = firstOf(group, end);
  return {
    group: group.group,
    recordClass: group.class,
    first,
    count: end - first,
    keyOf: (index) => answer?.keyOf(first + index) ?? "",
    offers: offersWithin(answer?.offers ?? [], first, end),
    hashes: group.hashes.subarray(first * HASH_BYTES, end * HASH_BYTES),
    parent:
      first === 0 ? NO_PARENT : group.hashes.subarray((first - 1) * HASH_BYTES, first * HASH_BYTES),
    tenant: group.tenant,
    cut,
  };
}

/** Returns the offers of blocks `first` to `end`, numbered from `first` on. */
function offersWithin(offers: readonly RunOffer[], first: number, end: number): RunOffer[] {
  return offers.flatMap((offer) => {
    const [from, to] = [Math.max(offer.first, first), Math.min(offer.end, end)];
    if (first === 0 && from === offer.first && to === offer.end) return [offer];
    return from < to ? [{ ...offer, first: from - first, end: to - first }] : [];
  });
}

/** Cuts ranges to `tokens`, because computing the rest is faster. Only for groups that are usable up to any block. */
export function cutRanges(
  ranges: readonly GroupRange[],
  tokens: number,
  shapeOf: (group: number) => GroupShape,
): GroupRange[] {
  return ranges.map((range) => {
    const most = Math.max(0, tokens / shapeOf(range.group).tokens - range.first);
    const count = Math.min(range.count, most);
    const hashes = range.hashes.subarray(0, count * HASH_BYTES);
    return { ...range, count, hashes, offers: offersWithin(range.offers, 0, count), cut: "slower" };
  });
}

/** Returns, per block, the start of the unbroken held run before it. One pass, however long prompt and window are. */
function reachOf(held: Buffer, { hashes }: Asked): Uint32Array {
  const count = hashes.length / HASH_BYTES;
  const reach = new Uint32Array(count + 1);
  for (let index = 0; index < count; index += 1) {
    reach[index + 1] = hasBit(held, index) ? (reach[index] ?? 0) : index + 1;
  }
  return reach;
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

/** Cuts the prompt at the deepest common end of blocks that leaves no more than `keys` hashes. */
export function cutToKeys<Group extends PrefetchGroup>(
  groups: readonly Group[],
  tokensOf: (group: number) => number,
  keys: number,
): Group[] {
  const sizes = groups.map(({ group }) => tokensOf(group));
  const step = sizes.reduce(leastCommonMultiple, 1);
  const steps = Math.floor(keys / sizes.reduce((sum, tokens) => sum + step / tokens, 0));
  return groups.map((group, index) => {
    const most = (steps * step) / (sizes[index] ?? step);
    const count = Math.min(most, group.hashes.length / HASH_BYTES);
    const hashes = group.hashes.subarray(0, count * HASH_BYTES);
    return { ...group, hashes, from: Math.min(group.from, count) };
  });
}

function leastCommonMultiple(a: number, b: number): number {
  let [high, low] = [a, b];
  while (low > 0) [high, low] = [low, high % low];
  return (a / high) * b;
}
