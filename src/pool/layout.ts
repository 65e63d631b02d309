// Owns the layout of a run's parts over vaults: each part ranks all vaults by its own draws, within quotas per stretch.
import { hash } from "node:crypto";
import {
  PART_BLOCKS,
  POOL_CLIENTS_MAX,
  RUN_BLOCKS,
  SHARE_SLACK,
  STRETCH_PARTS,
} from "../base/limits/pool.ts";

const RUN_PARTS: number = RUN_BLOCKS / PART_BLOCKS;
const WORDS = 2 ** 32;
/** Costs carry their pair in the last digits, because sorting plain numbers is ten times as fast as sorting by a function. */
const PAIRS_MAX = RUN_PARTS * POOL_CLIENTS_MAX;
const COST_STEPS = 2 ** 30;
/** Cap on a cost; a capped one is never the least. */
const COST_MOST = 255;

export interface Member {
  /** The same on every machine, because placement hashes it. */
  name: string;
  node: number;
  weight: number;
}

/** Vaults by rank, `members.length` for each part; the first of a part owns it while all are up. */
export type Layout = Uint8Array;

export function layoutOf(members: readonly Member[], name: string): Layout {
  const pairs = cheapestFirst(members, name);
  const parts = rankedBy(members, pairs);
  for (const [part, owner] of ownersOf(members, pairs).entries()) {
    const ranked = parts.subarray(part * members.length, (part + 1) * members.length);
    const at = ranked.indexOf(owner);
    ranked.copyWithin(1, 0, at);
    ranked[0] = owner;
  }
  for (const [at, member] of parts.entries()) parts[at] = members[member]?.node ?? 0;
  return parts;
}

/** Returns, for each part, the members from the cheapest on. */
function rankedBy(members: readonly Member[], pairs: Uint16Array): Uint8Array {
  const ranked = new Uint8Array(pairs.length);
  const ends = Uint16Array.from({ length: RUN_PARTS }, (_none, part) => part * members.length);
  for (const pair of pairs) {
    const part = Math.floor(pair / members.length);
    const end = ends[part] ?? 0;
    ranked[end] = pair % members.length;
    ends[part] = end + 1;
  }
  return ranked;
}

/** Returns pairs of part and member, as `part * members.length + member`. */
function cheapestFirst(members: readonly Member[], name: string): Uint16Array {
  const costs = costsOf(members, name);
  const keys = new Float64Array(members.length * RUN_PARTS);
  for (const [member, own] of costs.entries())
    for (let part = 0; part < RUN_PARTS; part += 1) {
      const pair = part * members.length + member;
      keys[pair] = Math.round(Math.min(own[part] ?? 0, COST_MOST) * COST_STEPS) * PAIRS_MAX + pair;
    }
  keys.sort();
  const pairs = new Uint16Array(keys.length);
  for (let at = 0; at < keys.length; at += 1) pairs[at] = (keys[at] ?? 0) % PAIRS_MAX;
  return pairs;
}

/**
 * Returns each member's cost of owning each part. The least cost wins in proportion to weights, and another vault
 * changes no cost of the others. Draws of a stretch are one per level, because free draws would spread parts less evenly.
 */
function costsOf(members: readonly Member[], name: string): Float64Array[] {
  const most = Math.max(...members.map(({ weight }) => weight));
  return members.map(({ name: member, weight }) => {
    const draw = drawsOf(`${member}-${name}`);
    const costs = new Float64Array(RUN_PARTS);
    for (let first = 0; first < RUN_PARTS; first += STRETCH_PARTS) {
      const length = Math.min(STRETCH_PARTS, RUN_PARTS - first);
      for (let level = 0; level < length; level += 1) {
        const other = Math.floor(draw() * (level + 1));
        costs[first + level] = costs[first + other] ?? 0;
        costs[first + other] = level;
      }
      for (let at = first; at < first + length; at += 1)
        costs[at] = -Math.log(((costs[at] ?? 0) + 1 - draw()) / length) * (most / weight);
    }
    return costs;
  });
}

/** Returns each part's owner, cheapest pair first; a member with its quota used up takes more only as the last choice. */
function ownersOf(members: readonly Member[], pairs: Uint16Array): number[] {
  const quotas = new Quotas(members);
  const owners = Array<number>(RUN_PARTS).fill(-1);
  for (const isLast of [false, true]) {
    for (const pair of pairs) {
      const [member, part] = [pair % members.length, Math.floor(pair / members.length)];
      if (owners[part] !== -1 || !(isLast || quotas.hasRoom(member, part))) continue;
      owners[part] = member;
      quotas.take(member, part);
    }
  }
  return owners;
}

/** Parts that each member may take of the run, and of each stretch. */
class Quotas {
  readonly #members: number;
  readonly #inRun: readonly number[];
  readonly #inStretch: readonly number[];
  readonly #taken: Uint16Array;
  readonly #takenIn: Uint16Array;

  constructor(members: readonly Member[]) {
    this.#members = members.length;
    this.#inRun = quotasOf(members, RUN_PARTS);
    this.#inStretch = quotasOf(members, STRETCH_PARTS);
    this.#taken = new Uint16Array(members.length);
    this.#takenIn = new Uint16Array(members.length * Math.ceil(RUN_PARTS / STRETCH_PARTS));
  }

  hasRoom(member: number, part: number): boolean {
    const [taken = 0, most = 0] = [this.#taken[member], this.#inRun[member]];
    const [takenIn = 0, mostIn = 0] = [
      this.#takenIn[this.#stretch(member, part)],
      this.#inStretch[member],
    ];
    return taken < most && takenIn < mostIn;
  }

  take(member: number, part: number): void {
    const stretch = this.#stretch(member, part);
    this.#taken[member] = (this.#taken[member] ?? 0) + 1;
    this.#takenIn[stretch] = (this.#takenIn[stretch] ?? 0) + 1;
  }

  #stretch(member: number, part: number): number {
    return Math.floor(part / STRETCH_PARTS) * this.#members + member;
  }
}

/** Returns the most that each member may take of `parts` parts. */
function quotasOf(members: readonly Member[], parts: number): number[] {
  const total = members.reduce((sum, { weight }) => sum + weight, 0);
  return members.map(({ weight }) => Math.ceil((parts * weight) / total + SHARE_SLACK));
}

/** Returns a generator of numbers in [0, 1) seeded by the name: xorshift with 128 bits of state. */
function drawsOf(name: string): () => number {
  const seed = hash("md5", name, "buffer");
  const state = Int32Array.from({ length: 4 }, (_none, at) => seed.readInt32LE(at * 4));
  return () => {
    const [newest = 0] = state;
    let mixed = state[3] ?? 0;
    mixed ^= mixed << 11;
    mixed ^= mixed >>> 8;
    state.copyWithin(1, 0, 3);
    const next = mixed ^ newest ^ (newest >>> 19);
    state[0] = next;
    return (next >>> 0) / WORDS;
  };
}
