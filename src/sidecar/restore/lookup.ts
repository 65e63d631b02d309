// Owns the look-up of blocks: first the engine's own arena, then one call to each vault, all at once; the answer is a list of offers.
import { countBits, HASH_BYTES, hasBit, keyCount, newBitmap, setBit } from "../../base/block.ts";
import type { Namespace, RecordClass } from "../../base/block.ts";
import { toTierkvError } from "../../base/errors.ts";
import { blockKeys } from "../../base/key-text.ts";
import { KEYS_PER_SLICE } from "../../base/limits/general.ts";
import { LOOKUP_GRACE_MS } from "../../base/limits/pool.ts";
import { SHARED_FIRST_MS } from "../../base/limits/shared.ts";
import type { Logger } from "../../base/log.ts";
import type { SidecarCounters } from "../../base/metrics.ts";
import { packKeys } from "../../base/native.ts";
import { nowMs, sleep, yieldToLoop } from "../../base/time.ts";
import type { Offer } from "../../client/source.ts";
import { offered } from "../../client/vault/found.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import type { BlockCache } from "../slots/block-cache.ts";
import type { Places, Pool } from "../vaults/pools.ts";
import type { LookupGate, LookupGates } from "../vaults/vaults.ts";
import type { LookupAnswer, LookupGroup } from "./lookup-answer.ts";
import { countHoles, isUnbroken } from "./misses.ts";
import { offersOf } from "./offers.ts";
import type { Said } from "./offers.ts";

export interface LookupContext {
  namespace: Namespace;
  shards: number;
  /** null: the engine has no arena yet. */
  cache: BlockCache | null;
  pools: Readonly<Record<RecordClass, Pick<Pool, "placesOf" | "ownerInPeace">>>;
  gates: LookupGates;
  /** Returns false once the caller no longer waits for the answer. */
  isWanted(): boolean;
  timeoutMs: number;
  trace?: Buffer | null;
  /** Left out: nobody in particular. */
  tenant?: number;
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
interface Asked extends Said {
  readonly question: { readonly group: LookupGroup; readonly held: Buffer };
  archived: Said["archived"];
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
  const { isCounted = true } = context;
  const answers = questions.map((question) => {
    const { group, count, held, places, keyOf, asked } = question;
    // A look-up of single vaults, or of windows' first blocks, finds gaps that are none.
    if (isCounted && !isUnbroken(held, count)) countHoles(group, held, places, context, silent);
    const onMoved = (vault: number): void => {
      const gate = context.gates[group.class][vault];
      if (isCounted && gate !== undefined) gate.moved += 1;
    };
    return { keyOf, held, offers: offersOf(count, places, asked, onMoved) };
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
async function askArena(questions: readonly Question[], { cache }: LookupContext): Promise<number> {
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
    const { namespace, shards, timeoutMs, isWanted, tenant = 0 } = context;
    const { trace = null, isCounted = true } = context;
    const packed = packAsked(asked, shards);
    const purpose = { trace, isCounted, tenant };
    const offers = await gate.find(namespace, packed, timeoutMs, isWanted, purpose);
    if (offers === null) return false;
    const present = offered(offers, keyCount(packed));
    // A place whose first source does not answer offers what lies behind it alone.
    const archive = offers.find(({ source }) => !gate.isItself(source)) ?? null;
    const keys = { present, archive, shards };
    let at = 0;
    for (const each of asked) {
      if (at === 0 && isWhole(each, keys)) takeAll(each, present);
      else take(each, keys, at);
      at += each.indexes.length * shards;
    }
    return true;
  } catch (error) {
    context.counters.add("vault_errors");
    context.logger.debug({ err: toTierkvError(error), vault: gate.address }, "look-up failed");
    return false;
  }
}

/** A vault's answer by key: all that it has, and the offer of its archive. */
interface Keys {
  readonly present: Buffer;
  readonly archive: Offer | null;
  readonly shards: number;
}

/** True where the answer begins with this group's blocks, all of them, with one key each, none of them in an archive. */
function isWhole({ question, indexes }: Asked, { archive, shards }: Keys): boolean {
  const isAll = indexes.length === question.group.hashes.length / HASH_BYTES;
  return isAll && shards === 1 && archive === null && indexes.length % 8 === 0;
}

/** Takes the part of such a group, eight blocks at a time. */
function takeAll({ said, question }: Asked, present: Buffer): void {
  const { held } = question;
  for (let at = 0; at < said.length; at += 1) {
    const bits = present[at] ?? 0;
    said[at] = bits;
    held[at] = (held[at] ?? 0) | bits;
  }
}

/** Takes one group's part of an answer, whose keys begin at `from`. */
function take(asked: Asked, { present, archive, shards }: Keys, from: number): void {
  const { said, indexes, question } = asked;
  let at = from;
  for (const index of indexes) {
    if (countFrom(present, at, shards) === shards) {
      setBit(question.held, index);
      setBit(said, index);
    }
    const records = archive === null ? 0 : countFrom(archive.keys, at, shards);
    if (archive !== null && records > 0) {
      const count = question.group.hashes.length / HASH_BYTES;
      asked.archived ??= { source: archive.source, counts: new Uint8Array(count) };
      asked.archived.counts[index] = Math.min(records, COUNT_MAX);
    }
    at += shards;
  }
}

/** Largest number that a byte holds; the cost of more records of one block is that of so many. */
const COUNT_MAX = 255;

function countFrom(bits: Buffer, from: number, count: number): number {
  let sum = 0;
  for (let at = from; at < from + count; at += 1) sum += Number(hasBit(bits, at));
  return sum;
}

/** Packs the keys of the asked blocks, with all shards of a block together. The core does, because JavaScript takes five times as long. */
function packAsked(asked: readonly Asked[], shards: number): Buffer {
  const parts = asked.flatMap(({ question, indexes }) => {
    if (indexes.length === 0) return [];
    const { hashes, group } = question.group;
    const isAll = indexes.length === hashes.length / HASH_BYTES;
    return [packKeys(hashes, group, shards, isAll ? null : Uint32Array.from(indexes))];
  });
  const [only, ...more] = parts;
  return only !== undefined && more.length === 0 ? only : Buffer.concat(parts);
}
