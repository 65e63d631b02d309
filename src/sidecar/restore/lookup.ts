// Owns the look-up of blocks: first the engine's own arena, then one call to each vault, all at once; the answer is a list of offers.
import { countBits, HASH_BYTES, hasBit, keyCount, KeyPacker, newBitmap, setBit } from "../../block.ts";
import type { Namespace, RecordClass } from "../../block.ts";
import { offered } from "../../client/found.ts";
import type { BlockSource } from "../../client/source.ts";
import { toTierkvError } from "../../errors.ts";
import { blockKeys } from "../../key-text.ts";
import { KEYS_PER_SLICE } from "../../limits/general.ts";
import { LOOKUP_GRACE_MS } from "../../limits/pool.ts";
import { SHARED_FIRST_MS } from "../../limits/shared.ts";
import type { Logger } from "../../log.ts";
import type { SidecarCounters } from "../../metrics.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import { nowMs, sleep, yieldToLoop } from "../../time.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { RunOffer } from "../slots/block.ts";
import type { Places, Pool } from "../vaults/pools.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";
import { countHoles } from "./misses.ts";

export interface LookupGroup {
  group: number;
  class: RecordClass;
  /** Block hashes, 32 bytes each. */
  hashes: Buffer;
  /** Above 0: only the last `tail` blocks are needed. */
  tail?: number;
}

/** What is known of one group's blocks. */
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

export interface LookupContext {
  namespace: Namespace;
  shards: number;
  /** null: the engine has no arena yet. */
  cache: BlockCache | null;
  pools: Readonly<Record<RecordClass, Pick<Pool, "placesOf">>>;
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

/** One group of a look-up. */
interface Question {
  readonly group: LookupGroup;
  readonly count: number;
  readonly keyOf: (index: number) => string;
  readonly held: Buffer;
  readonly places: Places;
  /** By vault of the class. */
  readonly asked: readonly Asked[];
}

/** One group's part of the call to one vault: the hashes at `indexes`. */
interface Asked {
  readonly question: { readonly group: LookupGroup; readonly held: Buffer };
  /** Bitmap of the blocks that this vault reported. */
  readonly said: Buffer;
  /** Records per block that only its archive has, and the archive; null: none. */
  archived: { source: BlockSource; counts: Uint8Array } | null;
  indexes: number[];
}

/** Groups to ask for, by vault. */
type Open = ReadonlyMap<LookupGate, readonly Asked[]>;

export async function lookUp(
  groups: readonly LookupGroup[],
  context: LookupContext,
): Promise<LookupAnswer> {
  const open = new Map<LookupGate, Asked[]>();
  const questions = groups.map((group) => questionOf(group, context, open));
  const seen = await askArena(questions, context);
  const silent = await askVaults(questions, open, context);
  context.counters.add("lookup_keys", seen);
  context.counters.add(
    "lookup_hits",
    questions.reduce((sum, { held, count }) => sum + countBits(held, count), 0),
  );
  const answers = questions.map((question) => {
    const { group, held, places, keyOf } = question;
    countHoles(group, held, places, context, silent);
    return { keyOf, held, offers: offersOf(question, context.gates[group.class]) };
  });
  return { groups: answers, silent };
}

/** Prepares one group's questions to all vaults of its class. */
function questionOf(
  group: LookupGroup,
  { namespace, pools, gates }: LookupContext,
  open: Map<LookupGate, Asked[]>,
): Question {
  const { hashes } = group;
  const count = hashes.length / HASH_BYTES;
  const held = newBitmap(count);
  const asked = gates[group.class].map((gate): Asked => {
    const one = { question: { group, held }, said: newBitmap(count), archived: null, indexes: [] };
    const others = open.get(gate);
    if (others === undefined) open.set(gate, [one]);
    else others.push(one);
    return one;
  });
  const places = pools[group.class].placesOf(hashes);
  return { group, count, keyOf: blockKeys(namespace, group.group, hashes), held, places, asked };
}

/** Looks into the arena, and queues the missing blocks for the vaults that may hold them. Returns the number of blocks. */
async function askArena(
  questions: readonly Question[],
  { cache }: LookupContext,
): Promise<number> {
  let seen = 0;
  for (const { group, count, keyOf, held, places, asked } of questions) {
    const { owners, others } = places;
    for (let index = 0; index < count; index += 1) {
      if (cache?.isPlacedAt(group.hashes, index, keyOf) === true) setBit(held, index);
      else {
        asked[owners[index] ?? 0]?.indexes.push(index);
        for (const list of others) asked[list[index] ?? NO_VAULT]?.indexes.push(index);
      }
      seen += 1;
      if (seen % KEYS_PER_SLICE === 0) await yieldToLoop();
    }
  }
  return seen;
}

/** Asks all vaults at once, shared memory a moment earlier; returns the ones that did not answer. */
async function askVaults(
  questions: readonly Question[],
  open: Open,
  context: LookupContext,
): Promise<ReadonlySet<LookupGate>> {
  const silent = new Set<LookupGate>();
  const ask = async ([gate, asked]: [LookupGate, readonly Asked[]]): Promise<void> => {
    if (!(await askVault(gate, asked, context))) silent.add(gate);
  };
  const entries = [...open];
  const near = entries.filter(([gate]) => gate.tier === "shared").map(ask);
  const far = entries.filter(([gate]) => gate.tier !== "shared");
  if (near.length > 0 && far.length > 0) await askedFirst(near, far);
  const asks = [...near, ...far.map(ask)];
  // Blocks that lie on two vaults need only the faster answer.
  const isDouble = questions.some(({ places }) => places.others.length > 0);
  const isEnough = (): boolean =>
    questions.every(({ held, count }) => countBits(held, count) === count);
  await (isDouble ? untilAnswered(asks, isEnough) : Promise.all(asks));
  return silent;
}

/** Waits a moment for shared memory, and asks the vaults only for what it does not hold. */
async function askedFirst(
  near: readonly Promise<void>[],
  far: readonly [LookupGate, readonly Asked[]][],
): Promise<void> {
  await Promise.race([Promise.all(near), sleep(SHARED_FIRST_MS)]);
  for (const asked of far.flatMap(([, all]) => all)) {
    asked.indexes = asked.indexes.filter((index) => !hasBit(asked.question.held, index));
  }
}

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
    const offers = await gate.find(namespace, packed, timeoutMs, isWanted, { trace, isCounted });
    if (offers === null) return false;
    const present = offered(offers, keyCount(packed));
    // A vault offers its own records first, and then its archive's.
    const [, archive] = offers;
    let at = 0;
    for (const each of asked) {
      const { said, indexes, question } = each;
      for (const index of indexes) {
        let found = 0;
        while (found < shards && hasBit(present, at + found)) found += 1;
        if (found === shards) {
          setBit(question.held, index);
          setBit(said, index);
        }
        if (archive !== undefined) {
          const { source, keys } = archive;
          let records = 0;
          for (let shard = 0; shard < shards; shard += 1) records += +hasBit(keys, at + shard);
          if (records > 0) noteArchived(each, source, index, records);
        }
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

function noteArchived(asked: Asked, source: BlockSource, index: number, records: number): void {
  const count = asked.question.group.hashes.length / HASH_BYTES;
  asked.archived ??= { source, counts: new Uint8Array(count) };
  asked.archived.counts[index] = Math.min(records, 255);
}

/** Packs the keys of the asked blocks, with all shards of a block together. */
function packAsked(asked: readonly Asked[], shards: number): Buffer {
  const packer = new KeyPacker(
    asked.reduce((sum, { indexes }) => sum + indexes.length, 0) * shards,
  );
  for (const { question, indexes } of asked) {
    const { hashes, group } = question.group;
    for (const index of indexes) packer.add(hashes, index, group, shards);
  }
  return packer.keys;
}

/**
 * Chooses each block's vault: the likeliest of the ones that reported it or are to have it, and another one. Neighbours that are
 * offered alike share an offer.
 */
function offersOf(
  { count, places, asked }: Question,
  gates: readonly LookupGate[],
): readonly RunOffer[] {
  const { owners, others, before = [] } = places;
  const isPlain = others.length === 0 && owners.length === 0;
  if (isPlain && asked[0]?.archived == null) return [offerOf(0, count, 0, null, 0, null)];
  const lists = [owners, ...others];
  const isSaid = (vault: number, index: number): boolean => {
    const said = asked[vault]?.said;
    return said !== undefined && hasBit(said, index);
  };
  const archivedAt = (vault: number, index: number): number =>
    asked[vault]?.archived?.counts[index] ?? 0;
  const offers: RunOffer[] = [];
  for (let index = 0; index < count; index += 1) {
    const owner = owners[index] ?? 0;
    let [vault, second]: [number, number | null] = [owner, null];
    if (others.length > 0) {
      const on = lists.flatMap((list) => (list[index] === NO_VAULT ? [] : (list[index] ?? [])));
      const isNear = (one: number): boolean => isSaid(one, index) && archivedAt(one, index) === 0;
      vault = on.find(isNear) ?? on.find((one) => isSaid(one, index)) ?? owner;
      const rest = on.filter((one) => one !== vault);
      const gate = gates[vault];
      const isMoved = isSaid(vault, index) && before.some((list) => list[index] === vault);
      if (isMoved && gate !== undefined) gate.moved += 1;
      // A block at a former owner will move to the present one.
      second =
        vault === owner ? (rest.find((one) => isSaid(one, index)) ?? rest[0] ?? null) : owner;
      if (second === NO_VAULT) second = null;
    }
    const archived = archivedAt(vault, index);
    const last = offers.at(-1);
    if (last?.vault === vault && last.second === second && last.archived === archived)
      last.end = index + 1;
    else {
      const source = archived === 0 ? null : (asked[vault]?.archived?.source ?? null);
      offers.push(offerOf(index, index + 1, vault, second, archived, source));
    }
  }
  return offers;
}

function offerOf(
  first: number,
  end: number,
  vault: number,
  second: number | null,
  archived: number,
  source: BlockSource | null,
): RunOffer {
  return { first, end, vault, second, archived, source };
}
