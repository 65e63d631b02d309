// Owns which engine holds which block, as its events report: removed blocks are never listed, and a bound drops the oldest.
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

/** Blocks that one engine reported in one tier. */
interface TierIndex {
  /** Engine's block names to ours, oldest first. */
  names: NameTable;
  /** Groups that stored blocks; a removal in another group is ignored. */
  groups: Set<number>;
  /** Number of an engine's copies of a block in the first of `groups`, where it has several. */
  copies: Map<bigint, number>;
}

/** State of one engine. */
interface Holding {
  /** Bit of this engine. */
  bit: number;
  tiers: Readonly<Record<Tier, TierIndex>>;
  /** Whether the engine can pull from vaults, as its events show. */
  pulls: boolean;
  blockSize: number | null;
  isTrusted: boolean;
  /** Whether events may repeat what a saved index held already, so that they show no second copies. */
  isRepeated: boolean;
  /** Recent blocks of the engine's own memory: stored and removed. */
  came: number;
  went: number;
}

/** State that an engine reported, besides its blocks. */
export interface Told {
  blockSize: number | null;
  pulls: boolean;
  groups: Readonly<Record<Tier, readonly number[]>>;
}

/** That state and the blocks as pairs: the engine's name at every second place of `hashes`, ours after it in `names`. */
export interface Stock extends Told {
  parts: { tier: Tier; hashes: BigUint64Array; names: Float64Array }[];
}

export class BlockIndex {
  /** Engines that reported a block, by tier. */
  readonly #bits: Readonly<Record<Tier, BitTable>> = {
    gpu: new BitTable(),
    vault: new BitTable(),
  };
  readonly #holdings: readonly Holding[];
  readonly #blocksMax: number;
  /** Blocks of requests just sent; their events come with the engine's next step. */
  readonly #guesses: Fleeting;
  /** Blocks that vaults reported themselves, by the engines that can pull them. */
  readonly #found = new Fleeting(GATEWAY_FOUND_MS, GATEWAY_FOUND_BLOCKS_MAX);

  /** Seeds of the block names. */
  readonly seeds: Seeds;
  /** How often an engine's blocks were dropped other than by its events. */
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
      isRepeated: false,
      came: 0,
      went: 0,
    }));
  }

  /** Number of blocks that an engine reported. */
  blocks(engine: number, tier: Tier = "gpu"): number {
    return this.#of(engine).tiers[tier].names.size;
  }

  /** Blocks of an engine's own memory that go for each that comes: 0 while it has room, 1 once it is full. */
  pressure(engine: number): number {
    const { came, went } = this.#of(engine);
    return came === 0 ? 0 : Math.min(1, went / came);
  }

  /** Block size of an engine; before it reports one, that of another engine; null: none has. */
  blockSize(engine: number): number | null {
    const told = this.#holdings.find(({ blockSize }) => blockSize !== null);
    return this.#of(engine).blockSize ?? told?.blockSize ?? null;
  }

  /** An engine whose events are incomplete counts as holding nothing. */
  trust(engine: number, isTrusted: boolean): void {
    const holding = this.#of(engine);
    holding.isTrusted = isTrusted;
    if (isTrusted) holding.isRepeated = false;
  }

  apply(engine: number, event: KvEvent): void {
    const holding = this.#of(engine);
    // An engine that empties its own memory says nothing of vaults.
    if (event.kind === "cleared") this.#empty(holding, "gpu");
    else if (event.kind === "removed") this.#remove(holding, event);
    else if (event.kind === "named") this.#name(holding, event);
    else this.#store(holding, event);
  }

  /** Drops all that an engine reported. */
  clear(engine: number): void {
    const holding = this.#of(engine);
    this.#empty(holding, "gpu");
    this.#empty(holding, "vault");
    this.#found.forget(holding.bit);
    holding.pulls = false;
    this.drops += 1;
  }

  /** Returns an engine's blocks, oldest first; events may continue meanwhile. */
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

  /** Restores an engine's saved state into an empty one; requests rely on it only once it is trusted. */
  restore(engine: number, { blockSize, pulls, groups, parts }: Stock): void {
    const holding = this.#of(engine);
    Object.assign(holding, { blockSize, pulls, isRepeated: true });
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

  /** Assumes these blocks of a prompt on an engine, because they are computed there now or shortly. */
  guess(engine: number, names: readonly BlockName[]): void {
    this.#guesses.add(this.#of(engine).bit, names);
  }

  /** Notes blocks that a vault reported, by the names that these engines have for them. */
  found(engines: readonly number[], names: readonly BlockName[]): void {
    this.#found.add(
      engines.reduce((bits, engine) => bits | this.#of(engine).bit, 0),
      names,
    );
  }

  /** Number of blocks that vaults reported lately. */
  get foundBlocks(): number {
    return this.#found.size;
  }

  /** Returns for each engine how many blocks from the first on it holds itself. */
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
   * Returns for each engine how many blocks from the first on it has after pulling from vaults behind its own (`held`, by
   * engine). Vault blocks that one of the `peers` (same model) reported can be pulled by every peer that pulls.
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
    /** End of the run of blocks in vaults, by the block from which it is read. */
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
    const { tier, parent: above } = event;
    const parent = above === null ? ROOT : gpu.names.get(above) || vault.names.get(above);
    if (tier === "vault") holding.pulls = true;
    // Blocks after an unknown one cannot be named.
    if (parent === ROOT && above !== null) return;
    holding.blockSize = event.blockSize;
    holding.tiers[tier].groups.add(event.group);
    if (tier === "gpu") this.#countCome(holding, event.blocks.length);
    this.#storeBehind(holding, parent, event);
    this.#makeRoom(holding, tier);
  }

  #countCome(holding: Holding, blocks: number): void {
    holding.came += blocks;
    if (holding.came <= GATEWAY_PRESSURE_BLOCKS) return;
    holding.came /= 2;
    holding.went /= 2;
  }

  #storeBehind(
    holding: Holding,
    above: BlockName,
    { tier, group, blocks }: Extract<KvEvent, { kind: "stored" }>,
  ): void {
    const { names, groups, copies } = holding.tiers[tier];
    const bits = this.#bits[tier];
    const isCounted = tier === "gpu" && group === firstOf(groups) && !holding.isRepeated;
    let parent = above;
    for (const { hash, tokens, extra } of blocks) {
      parent = nameOf(this.seeds, parent, tokens, extra);
      const before = names.get(hash);
      if (before !== 0 && before !== parent) this.#drop(holding, tier, before);
      if (before !== parent) {
        names.set(hash, parent);
        copies.delete(hash);
      } else if (isCounted) {
        // Two requests that computed one block at once leave two copies, and each is removed on its own.
        copies.set(hash, (copies.get(hash) ?? 1) + 1);
      }
      bits.set(parent, bits.get(parent) | holding.bit);
    }
  }

  #remove(holding: Holding, event: Extract<KvEvent, { kind: "removed" }>): void {
    const { tier } = event;
    const { names, groups, copies } = holding.tiers[tier];
    if (!groups.has(event.group)) return;
    const isCounted = event.group === firstOf(groups);
    for (const hash of event.hashes) {
      if (isCounted && leaveOne(copies, hash)) continue;
      // A prompt needs a block in every group.
      copies.delete(hash);
      const name = names.delete(hash);
      if (name === 0) continue;
      if (tier === "gpu") holding.went += 1;
      else this.#found.delete(name);
      this.#drop(holding, tier, name);
    }
  }

  #empty(holding: Holding, tier: Tier): void {
    const { names, groups, copies } = holding.tiers[tier];
    for (const [, name] of names.entries()) this.#drop(holding, tier, name);
    names.clear();
    groups.clear();
    copies.clear();
  }

  /** Bounds both tiers together; the one that grows drops its oldest. */
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
  return { names: new NameTable(), groups: new Set(), copies: new Map() };
}

/** The group whose copies are counted; another group's second copy counts as none, which claims too little. */
function firstOf(groups: ReadonlySet<number>): number | undefined {
  const [first] = groups;
  return first;
}

/** Takes one of several copies away; returns false where there is no second one. */
function leaveOne(copies: Map<bigint, number>, hash: bigint): boolean {
  if (copies.size === 0) return false;
  const count = copies.get(hash);
  if (count === undefined) return false;
  if (count > 2) copies.set(hash, count - 1);
  else copies.delete(hash);
  return true;
}
