// Owns which engine holds which block, as its events tell: never a block that an engine has told of removing, bounded by dropping the oldest.
import {
  GATEWAY_FOUND_BLOCKS_MAX,
  GATEWAY_FOUND_MS,
  GATEWAY_INDEX_BLOCKS_MAX,
  GATEWAY_PRESSURE_BLOCKS,
  GATEWAY_SPECULATION_MS,
} from "../../limits/gateway.ts";
import { nowMs } from "../../time.ts";
import type { KvEvent, Tier } from "../events/batch.ts";
import { nameOf, newSeeds, ROOT } from "./chain.ts";
import type { BlockName, Seeds } from "./chain.ts";
import { Fleeting } from "./fleeting.ts";
import { BitTable, NameTable } from "./tables.ts";

/** What one engine told of one tier. */
interface TierIndex {
  /** Its own name of a block to ours, oldest first. */
  names: NameTable;
  /** Groups of which blocks were stored: a removal in another says nothing. */
  groups: Set<number>;
}

/** What one engine told. */
interface Holding {
  /** Bit of this engine. */
  bit: number;
  tiers: Readonly<Record<Tier, TierIndex>>;
  /** It told of a vault since its events are followed: so it can pull. */
  pulls: boolean;
  blockSize: number | null;
  isTrusted: boolean;
  /** Blocks of its own memory that it told of lately: those that came, and those that went. */
  came: number;
  went: number;
}

/** What an engine told besides its blocks. */
export interface Told {
  blockSize: number | null;
  pulls: boolean;
  groups: Readonly<Record<Tier, readonly number[]>>;
}

/** That and its blocks, as pairs: the engine's name of one in every second place of `hashes`, ours behind it in `names`. */
export interface Stock extends Told {
  parts: { tier: Tier; hashes: BigUint64Array; names: Float64Array }[];
}

export class BlockIndex {
  /** Engines that told of a block, by tier. */
  readonly #bits: Readonly<Record<Tier, BitTable>> = {
    gpu: new BitTable(),
    vault: new BitTable(),
  };
  readonly #holdings: readonly Holding[];
  readonly #blocksMax: number;
  /** Blocks of requests that were just sent: their events come with the engine's next step. */
  readonly #guesses: Fleeting;
  /** Blocks that vaults hold by their own word, by the engines that can pull them. */
  readonly #found = new Fleeting(GATEWAY_FOUND_MS, GATEWAY_FOUND_BLOCKS_MAX);

  /** Of the names. */
  readonly seeds: Seeds;
  /** How often an engine's blocks were dropped otherwise than by its events. */
  drops = 0;

  constructor(
    engines: number,
    blocksMax: number = GATEWAY_INDEX_BLOCKS_MAX,
    seeds: Seeds = newSeeds(),
  ) {
    this.seeds = seeds;
    this.#blocksMax = Math.max(1, Math.floor(blocksMax / Math.max(1, engines)));
    this.#guesses = new Fleeting(GATEWAY_SPECULATION_MS, this.#blocksMax);
    this.#holdings = Array.from({ length: engines }, (_none, at) => ({
      bit: 2 ** at,
      tiers: { gpu: newTierIndex(), vault: newTierIndex() },
      pulls: false,
      blockSize: null,
      isTrusted: false,
      came: 0,
      went: 0,
    }));
  }

  /** Blocks that an engine told of. */
  blocks(engine: number, tier: Tier = "gpu"): number {
    return this.#of(engine).tiers[tier].names.size;
  }

  /** How many blocks of an engine's own memory go for each that comes: 0 while it has room, 1 once it is full. */
  pressure(engine: number): number {
    const { came, went } = this.#of(engine);
    return came === 0 ? 0 : Math.min(1, went / came);
  }

  /** Of an engine that has not told of a block yet: what another one has. null: none has. */
  blockSize(engine: number): number | null {
    const told = this.#holdings.find(({ blockSize }) => blockSize !== null);
    return this.#of(engine).blockSize ?? told?.blockSize ?? null;
  }

  /** An engine whose events are incomplete holds nothing as far as requests are concerned. */
  trust(engine: number, isTrusted: boolean): void {
    this.#of(engine).isTrusted = isTrusted;
  }

  apply(engine: number, event: KvEvent): void {
    const holding = this.#of(engine);
    // An engine that empties its own memory says nothing of vaults.
    if (event.kind === "cleared") this.#empty(holding, "gpu");
    else if (event.kind === "removed") this.#remove(holding, event);
    else if (event.kind === "named") this.#name(holding, event);
    else this.#store(holding, event);
  }

  /** Nothing that it told is believed any more. */
  clear(engine: number): void {
    const holding = this.#of(engine);
    this.#empty(holding, "gpu");
    this.#empty(holding, "vault");
    this.#found.forget(holding.bit);
    holding.pulls = false;
    this.drops += 1;
  }

  /** Its blocks, oldest first; events may go on meanwhile. */
  names(engine: number, tier: Tier): Iterable<[bigint, BlockName]> {
    return this.#of(engine).tiers[tier].names.entries();
  }

  told(engine: number): Told {
    const { blockSize, pulls, tiers } = this.#of(engine);
    return {
      blockSize,
      pulls,
      groups: { gpu: [...tiers.gpu.groups], vault: [...tiers.vault.groups] },
    };
  }

  /** What was known of it before, over nothing; nobody relies on it before it is trusted. */
  restore(engine: number, { blockSize, pulls, groups, parts }: Stock): void {
    const holding = this.#of(engine);
    Object.assign(holding, { blockSize, pulls });
    for (const { tier, hashes, names } of parts) {
      const index = holding.tiers[tier];
      const bits = this.#bits[tier];
      for (const group of groups[tier]) index.groups.add(group);
      for (let at = 0; at < hashes.length; at += 2) {
        const name = names[at + 1] ?? 0;
        index.names.set(hashes[at] ?? 0n, name);
        bits.set(name, bits.get(name) | holding.bit);
      }
      this.#makeRoom(holding, tier);
    }
  }

  /** These blocks of a prompt are computed there now, or will be in a moment. */
  guess(engine: number, names: readonly BlockName[]): void {
    this.#guesses.add(this.#of(engine).bit, names);
  }

  /** A vault said that it holds these blocks, by the names that these engines have for them. */
  found(engines: readonly number[], names: readonly BlockName[]): void {
    this.#found.add(
      engines.reduce((bits, engine) => bits | this.#of(engine).bit, 0),
      names,
    );
  }

  /** Blocks that vaults said to hold lately. */
  get foundBlocks(): number {
    return this.#found.size;
  }

  /** How many blocks from the first on each engine holds itself. */
  prefixes(names: readonly BlockName[]): number[] {
    const found = this.#holdings.map(() => 0);
    const note = (engines: number, depth: number): void => {
      for (const [engine, { bit }] of this.#holdings.entries()) {
        if ((engines & bit) !== 0) found[engine] = depth;
      }
    };
    const now = nowMs();
    const trusted = this.#trusted(() => true);
    const { gpu } = this.#bits;
    let holders = -1;
    for (const [depth, name] of names.entries()) {
      const next = holders & ((gpu.get(name) & trusted) | this.#guesses.get(name, now));
      if (next !== holders) note(holders & ~next, depth);
      holders = next;
      if (holders === 0) return found;
    }
    note(holders, names.length);
    return found;
  }

  /**
   * How many blocks from the first on each engine has once it pulled what vaults hold behind its own (`held`, by engine). What
   * one of the `peers`, engines of the same model, told of a vault can be pulled by each that told of a vault itself.
   */
  reach(
    names: readonly BlockName[],
    held: readonly number[],
    peers: ReadonlySet<number>,
  ): number[] {
    const pullers = this.#holdings.map(({ pulls }, engine) => pulls && peers.has(engine));
    const from = Math.min(names.length, ...held.filter((_depth, engine) => pullers[engine]));
    const tellers = this.#trusted((engine) => peers.has(engine));
    const { vault } = this.#bits;
    const now = nowMs();
    /** Where the run of blocks in vaults ends, by the block it is looked at from. */
    const ends = new Map<number, number>([[names.length, names.length]]);
    for (let at = names.length - 1; at >= from; at -= 1) {
      const name = names[at] ?? 0;
      const isThere = ((vault.get(name) | this.#found.get(name, now)) & tellers) !== 0;
      ends.set(at, isThere ? (ends.get(at + 1) ?? at) : at);
    }
    return held.map((depth, engine) => (pullers[engine] ? (ends.get(depth) ?? depth) : depth));
  }

  #trusted(isMeant: (engine: number) => boolean): number {
    let bits = 0;
    for (const [engine, { bit, isTrusted }] of this.#holdings.entries()) {
      if (isTrusted && isMeant(engine)) bits |= bit;
    }
    return bits;
  }

  #name(holding: Holding, { name, blockSize }: Extract<KvEvent, { kind: "named" }>): void {
    holding.pulls = name !== null;
    holding.blockSize ??= blockSize;
  }

  #store(holding: Holding, event: Extract<KvEvent, { kind: "stored" }>): void {
    const { gpu, vault } = holding.tiers;
    const { tier } = event;
    const { parent: above } = event;
    let parent = above === null ? ROOT : gpu.names.get(above) || vault.names.get(above);
    if (tier === "vault") holding.pulls = true;
    // Blocks behind one that is not known cannot be named.
    if (parent === ROOT && above !== null) return;
    const { names, groups } = holding.tiers[tier];
    const bits = this.#bits[tier];
    holding.blockSize = event.blockSize;
    groups.add(event.group);
    if (tier === "gpu") holding.came += event.blocks.length;
    if (holding.came > GATEWAY_PRESSURE_BLOCKS) {
      holding.came /= 2;
      holding.went /= 2;
    }
    for (const { hash, tokens, extra } of event.blocks) {
      parent = nameOf(this.seeds, parent, tokens, extra);
      const before = names.get(hash);
      if (before !== 0 && before !== parent) this.#drop(holding, tier, before);
      if (before !== parent) names.set(hash, parent);
      bits.set(parent, bits.get(parent) | holding.bit);
    }
    this.#makeRoom(holding, tier);
  }

  #remove(holding: Holding, event: Extract<KvEvent, { kind: "removed" }>): void {
    const { tier } = event;
    const { names, groups } = holding.tiers[tier];
    if (!groups.has(event.group)) return;
    for (const hash of event.hashes) {
      const name = names.delete(hash);
      if (name === 0) continue;
      if (tier === "gpu") holding.went += 1;
      else this.#found.delete(name);
      this.#drop(holding, tier, name);
    }
  }

  #empty(holding: Holding, tier: Tier): void {
    const { names, groups } = holding.tiers[tier];
    for (const [, name] of names.entries()) this.#drop(holding, tier, name);
    names.clear();
    groups.clear();
  }

  /** Both tiers together have a bound, and the one that grows gives way. */
  #makeRoom({ bit, tiers }: Holding, tier: Tier): void {
    const { names } = tiers[tier];
    while (tiers.gpu.names.size + tiers.vault.names.size > this.#blocksMax && names.size > 0) {
      this.#drop({ bit }, tier, names.shift());
    }
  }

  #drop({ bit }: Pick<Holding, "bit">, tier: Tier, name: BlockName): void {
    const all = this.#bits[tier];
    all.set(name, all.get(name) & ~bit);
  }

  #of(engine: number): Holding {
    const holding = this.#holdings[engine];
    if (holding === undefined) throw new RangeError(`no engine ${engine}`);
    return holding;
  }
}

function newTierIndex(): TierIndex {
  return { names: new NameTable(), groups: new Set() };
}
