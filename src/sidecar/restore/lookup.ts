// Owns the look-up of blocks: first the engine's own arena, then one call to each vault, all at once.
import {
  countBits,
  HASH_BYTES,
  hasBit,
  hashAt,
  keyCount,
  KeyPacker,
  newBitmap,
  setBit,
} from "../../block.ts";
import type { Namespace, RecordClass } from "../../block.ts";
import { offered } from "../../client/found.ts";
import { toTierkvError } from "../../errors.ts";
import { blockKey, blockKeys } from "../../key-text.ts";
import { KEYS_PER_SLICE } from "../../limits/general.ts";
import { LOOKUP_GRACE_MS } from "../../limits/pool.ts";
import { SHARED_FIRST_MS } from "../../limits/shared.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import { nowMs, sleep, yieldToLoop } from "../../time.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { MissReason } from "../socket/reasons.ts";
import type { BlockOutcomes } from "../trace/block-outcomes.ts";
import type { Places, Pool, Pools } from "../vaults/pools.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";
import { farOf, noteFar } from "./far.ts";
import { countHoles } from "./holes.ts";
import { findRebuildable, withRebuilt } from "./rebuildable.ts";

export interface LookupGroup {
  group: number;
  class: RecordClass;
  /** Block hashes, 32 bytes each. */
  hashes: Buffer;
  /** Above 0: only the last `tail` blocks are needed. */
  tail?: number;
}

export interface LookupAnswer {
  /** Per group: returns the cache key of the hash at an index. */
  keyOf: ((index: number) => string)[];
  /** Per group: bitmap of the blocks held with all shards, in the arena or in a vault. */
  held: Buffer[];
  /** Per group and block: index of its vault in the class; 0 beyond the end. */
  owners: Uint8Array[];
  /** Per group and block: index of another vault that has it or is to have it; NO_VAULT, or beyond the end: none. */
  seconds: Uint8Array[];
  /** Per group and block: shards that only that vault's archive has; 0 beyond the end. */
  far: Uint8Array[];
  /** Vaults that did not answer; their blocks count as not held. */
  silent: ReadonlySet<LookupGate>;
}

export interface LookupContext {
  namespace: Namespace;
  shards: number;
  /** null: the engine has no arena yet. */
  cache: BlockCache | null;
  pools: Readonly<Record<RecordClass, Pick<Pool, "placesOf"> | Pool>>;
  gates: LookupGates;
  /** Returns false once the caller no longer waits for the answer. */
  isWanted(): boolean;
  timeoutMs: number;
  trace?: Buffer | null;
  /** False for a look-up that no request caused: it is not counted. */
  isCounted?: boolean;
  counters: SidecarCounters;
  logger: Logger;
}

/** One group's part of the call to one vault: the hashes at `indexes`. */
interface Asked {
  group: LookupGroup;
  held: Buffer;
  /** Bitmap of the blocks that this vault reported. */
  said: Buffer;
  /** Per block: shards that only its archive has; null: none. */
  far: Uint8Array | null;
  indexes: number[];
}

export async function lookUp(
  groups: readonly LookupGroup[],
  context: LookupContext,
): Promise<LookupAnswer> {
  const held = groups.map(({ hashes }) => newBitmap(hashes.length / HASH_BYTES));
  const places = groups.map((group) => context.pools[group.class].placesOf(group.hashes));
  const { keyOf, open, seen } = await openQuestions(groups, held, places, context);
  const silent = new Set<LookupGate>();
  const ask = async ([gate, asked]: [LookupGate, Asked[]]): Promise<void> => {
    if (!(await askVault(gate, asked, context))) silent.add(gate);
  };
  const isNear = ([gate]: [LookupGate, Asked[]]): boolean => gate.tier === "shared";
  const near = [...open].filter(isNear).map(ask);
  const far = [...open].filter((entry) => !isNear(entry));
  if (near.length > 0 && far.length > 0) await askedFirst(near, far);
  const asks = [...near, ...far.map(ask)];
  // Blocks that lie on two vaults need only the faster answer.
  const isDouble = places.some(({ others }) => others.length > 0);
  await (isDouble ? untilAnswered(asks, () => isAllHeld(groups, held)) : Promise.all(asks));
  const rebuildable = await Promise.all(
    groups.map(async (group, at) => {
      const pool = context.pools[group.class];
      const bitmap = held[at];
      if (!("kinOf" in pool) || pool.width === 0 || bitmap === undefined) return null;
      const gates = context.gates[group.class];
      const asked = gates.map((gate) => open.get(gate)?.find((one) => one.group === group));
      const saidAt = (vault: number, index: number): boolean =>
        hasBit(asked[vault]?.said ?? NONE_SAID, index);
      return await findRebuildable(group, bitmap, pool, saidAt, { ...context, gates, silent });
    }),
  );
  context.counters.add("lookup_keys", seen);
  context.counters.add("lookup_hits", countHits(groups, held));
  const found = groups.map((group, at) => {
    const of = places[at] ?? NOWHERE;
    const where = whereFound(group, of, context, open);
    const bitmap = rebuildable[at] ?? null;
    return bitmap === null ? where : withRebuilt(where, bitmap, of.width ?? 0);
  });
  for (const [at, group] of groups.entries())
    countHoles(group, held[at], places[at] ?? NOWHERE, context, silent);
  const owners = found.map((group) => group.owners);
  const archived = groups.map((group, at) => {
    const asked = context.gates[group.class].map((gate) =>
      open.get(gate)?.find((one) => one.group === group),
    );
    return farOf(asked, owners[at] ?? NOWHERE.owners);
  });
  const seconds = found.map((group) => group.seconds);
  return { keyOf, held, owners, seconds, far: archived, silent };
}

interface Questions {
  keyOf: LookupAnswer["keyOf"];
  /** Groups to ask for, by vault. */
  open: Map<LookupGate, Asked[]>;
  /** Hashes in total. */
  seen: number;
}

/** Looks into the arena, and queues the missing blocks for the vaults that may hold them. */
async function openQuestions(
  groups: readonly LookupGroup[],
  held: readonly Buffer[],
  places: readonly Places[],
  { namespace, cache, gates }: LookupContext,
): Promise<Questions> {
  const keyOf = groups.map(({ group, hashes }) => blockKeys(namespace, group, hashes));
  const open = new Map<LookupGate, Asked[]>();
  let seen = 0;
  for (const [groupIndex, group] of groups.entries()) {
    const bitmap = held[groupIndex] ?? newBitmap(0);
    const asked = newQuestions(group, bitmap, gates, open);
    const of = places[groupIndex] ?? NOWHERE;
    for (let index = 0; index < group.hashes.length / HASH_BYTES; index += 1) {
      if (cache?.isPlacedAt(group.hashes, index, keyOf[groupIndex]) === true) setBit(bitmap, index);
      else putTo(asked, of, index);
      seen += 1;
      if (seen % KEYS_PER_SLICE === 0) await yieldToLoop();
    }
  }
  return { keyOf, open, seen };
}

/** Waits a moment for shared memory, and asks the vaults only for what it does not hold. */
async function askedFirst(
  near: readonly Promise<void>[],
  far: readonly [LookupGate, Asked[]][],
): Promise<void> {
  await Promise.race([Promise.all(near), sleep(SHARED_FIRST_MS)]);
  for (const asked of far.flatMap(([, all]) => all)) {
    asked.indexes = asked.indexes.filter((index) => !hasBit(asked.held, index));
  }
}

const NONE_SAID = Buffer.alloc(0);
const NOWHERE: Places = { owners: new Uint8Array(0), others: [] };

/**
 * Resolves when all have answered. If the answers so far are enough, the others get as long again, so that a slightly slower owner
 * keeps its part. None of `asks` rejects.
 */
function untilAnswered(asks: readonly Promise<void>[], isEnough: () => boolean): Promise<void> {
  const startedMs = nowMs();
  return new Promise((resolve) => {
    let timer: NodeJS.Timeout | undefined;
    const check = (): void => {
      if (timer !== undefined || !isEnough()) return;
      timer = setTimeout(resolve, Math.max(LOOKUP_GRACE_MS, nowMs() - startedMs));
    };
    for (const ask of asks) void ask.then(check);
    void Promise.all(asks).then(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}

function isAllHeld(groups: readonly LookupGroup[], held: readonly Buffer[]): boolean {
  return groups.every(({ hashes }, at) => {
    const count = hashes.length / HASH_BYTES;
    return countBits(held[at] ?? newBitmap(0), count) === count;
  });
}

/** Chooses each block's vault, the likeliest of the ones that reported it or are to have it, and the second choice. */
function whereFound(
  group: LookupGroup,
  { owners, others, before = [] }: Places,
  { gates }: LookupContext,
  open: ReadonlyMap<LookupGate, readonly Asked[]>,
): { owners: Uint8Array; seconds: Uint8Array } {
  if (others.length === 0) return { owners, seconds: others[0] ?? NOWHERE.owners };
  const asked = gates[group.class].map((gate) => open.get(gate)?.find((of) => of.group === group));
  const seconds = new Uint8Array(owners.length).fill(NO_VAULT);
  const lists = [owners, ...others];
  const found = owners.map((owner, index) => {
    const on = lists.flatMap((list) => (list[index] === NO_VAULT ? [] : (list[index] ?? [])));
    const isSaid = (vault: number): boolean => hasBit(asked[vault]?.said ?? NONE_SAID, index);
    const isNear = (vault: number): boolean => isSaid(vault) && !asked[vault]?.far?.[index];
    const best = on.find(isNear) ?? on.find(isSaid) ?? owner;
    const rest = on.filter((vault) => vault !== best);
    if (isSaid(best) && before.some((list) => list[index] === best))
      countMoved(gates[group.class][best]);
    // A block at a former owner will move to the present one.
    seconds[index] = (best === owner ? (rest.find(isSaid) ?? rest[0]) : owner) ?? NO_VAULT;
    return best;
  });
  return { owners: found, seconds };
}

function countMoved(gate: LookupGate | undefined): void {
  if (gate !== undefined) gate.moved += 1;
}

function putTo(asked: readonly Asked[], { owners, others }: Places, index: number): void {
  asked[owners[index] ?? 0]?.indexes.push(index);
  for (const list of others) asked[list[index] ?? NO_VAULT]?.indexes.push(index);
}

/** Adds an empty list per vault of the group's class, in the order of the vaults. */
function newQuestions(
  group: LookupGroup,
  held: Buffer,
  gates: LookupGates,
  open: Map<LookupGate, Asked[]>,
): Asked[] {
  return gates[group.class].map((gate) => {
    const asked: Asked = { group, held, said: Buffer.alloc(held.length), far: null, indexes: [] };
    const others = open.get(gate);
    if (others === undefined) open.set(gate, [asked]);
    else others.push(asked);
    return asked;
  });
}

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
  { held, silent }: LookupAnswer,
  { pools, gates, outcomes, tokens }: MissContext,
): string | null {
  const miss = firstMiss(groups, held);
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
  return troubleAt(last, Math.max(0, deepest)) ?? outcomeOfLast(namespace, last, tokens, outcomes);
}

/** Returns the outcome of the deepest state or window behind `tokens` that was ever offered, because most places never have one. */
function outcomeOfLast(
  namespace: Namespace,
  group: NeededGroup,
  tokens: number,
  outcomes: BlockOutcomes,
): string {
  const count = group.hashes.length / HASH_BYTES;
  for (let index = count - 1; index >= 0 && index * group.tokens >= tokens; index -= 1) {
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
  if (gate.state === "refused") return "vault_refused";
  return silent.has(gate) || gate.state === "down" ? "vault_down" : null;
}

interface Miss {
  group: NeededGroup;
  index: number;
  /** Prompt tokens before the block. */
  tokens: number;
}

/** Returns the missing block nearest to the prompt's start, of the groups that need every block. */
export function firstMiss(groups: readonly NeededGroup[], held: readonly Buffer[]): Miss | null {
  let first: Miss | null = null;
  for (const [at, asked] of groups.entries()) {
    const { hashes, from, tokens, tail } = asked;
    const bitmap = held[at];
    if (bitmap === undefined || tail > 0) continue;
    let index = from;
    while (index < hashes.length / HASH_BYTES && hasBit(bitmap, index)) index += 1;
    if (index === hashes.length / HASH_BYTES) continue;
    if (first !== null && first.tokens <= index * tokens) continue;
    first = { group: asked, index, tokens: index * tokens };
  }
  return first;
}

function countHits(groups: readonly LookupGroup[], held: readonly Buffer[]): number {
  return groups.reduce((sum, { hashes }, index) => {
    const bitmap = held[index];
    return bitmap === undefined ? sum : sum + countBits(bitmap, hashes.length / HASH_BYTES);
  }, 0);
}

/** Asks one vault and sets the bits of the blocks it holds; false when it did not answer. */
async function askVault(
  gate: LookupGate,
  asked: readonly Asked[],
  context: LookupContext,
): Promise<boolean> {
  if (asked.every(({ indexes }) => indexes.length === 0)) return true;
  try {
    const { namespace, shards, timeoutMs, isWanted, trace = null, isCounted = true } = context;
    const packed = packAsked(asked, shards);
    const answer = await gate.find(namespace, packed, timeoutMs, isWanted, { trace, isCounted });
    if (answer === null) return false;
    const present = offered(answer, keyCount(packed));
    const [, archived] = answer;
    const far = archived?.keys ?? null;
    let at = 0;
    for (const each of asked) {
      const { held, said, indexes } = each;
      for (const index of indexes) {
        let found = 0;
        while (found < shards && hasBit(present, at + found)) found += 1;
        if (found === shards) {
          setBit(held, index);
          setBit(said, index);
        }
        if (far !== null) noteFar(each, index, far, at, shards);
        at += shards;
      }
    }
    return true;
  } catch (error) {
    context.counters.add("vault_errors");
    context.logger.debug({ err: toTierkvError(error), vault: gate.address }, "look-up failed");
    return false;
  }
}

/** Packs the keys of the asked blocks, with all shards of a block together. */
function packAsked(asked: readonly Asked[], shards: number): Buffer {
  const packer = new KeyPacker(
    asked.reduce((sum, { indexes }) => sum + indexes.length, 0) * shards,
  );
  for (const { group, indexes } of asked) {
    for (const index of indexes) packer.add(group.hashes, index, group.group, shards);
  }
  return packer.keys;
}
