// Owns which engine holds which block, as its events tell: never a block that an engine has told of removing, bounded by dropping the oldest.
import { GATEWAY_INDEX_BLOCKS_MAX, GATEWAY_SPECULATION_MS } from "../../limits-gateway.ts";
import { nowMs } from "../../time.ts";
import type { KvEvent } from "../events/batch.ts";
import { nameOf, ROOT } from "./chain.ts";
import type { BlockName } from "./chain.ts";

/** What one engine told. */
interface Holding {
  /** Bit of this engine. */
  bit: number;
  /** Its own name of a block to ours, oldest first. */
  names: Map<bigint, BlockName>;
  /** Groups of which blocks were stored: a removal in another says nothing. */
  groups: Set<number>;
  blockSize: number | null;
  /** Events whose parent was not known: their blocks cannot be named. */
  orphans: number;
  isTrusted: boolean;
}

interface Guess {
  bits: number;
  untilMs: number;
}

export class BlockIndex {
  readonly #bits = new Map<BlockName, number>();
  readonly #holdings: readonly Holding[];
  readonly #blocksMax: number;
  /** Blocks of requests that were just sent: their events come with the engine's next step. */
  readonly #guesses = new Map<BlockName, Guess>();

  constructor(engines: number, blocksMax: number = GATEWAY_INDEX_BLOCKS_MAX) {
    this.#blocksMax = Math.max(1, Math.floor(blocksMax / Math.max(1, engines)));
    this.#holdings = Array.from({ length: engines }, (_none, at) => ({
      bit: 2 ** at,
      names: new Map(),
      groups: new Set(),
      blockSize: null,
      orphans: 0,
      isTrusted: false,
    }));
  }

  /** Blocks an engine is known to hold. */
  blocks(engine: number): number {
    return this.#of(engine).names.size;
  }

  orphans(engine: number): number {
    return this.#of(engine).orphans;
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
    if (event.kind === "cleared") this.clear(engine);
    else if (event.kind === "removed") remove(holding, event, (name) => this.#drop(holding, name));
    else this.#store(holding, event);
  }

  clear(engine: number): void {
    const holding = this.#of(engine);
    for (const name of holding.names.values()) this.#drop(holding, name);
    holding.names.clear();
    holding.groups.clear();
  }

  /** These blocks of a prompt are computed there now, or will be in a moment. */
  guess(engine: number, names: readonly BlockName[]): void {
    const { bit } = this.#of(engine);
    const now = nowMs();
    const untilMs = now + GATEWAY_SPECULATION_MS;
    for (const name of names) {
      const { bits = 0 } = this.#guesses.get(name) ?? {};
      this.#guesses.delete(name);
      this.#guesses.set(name, { bits: bits | bit, untilMs });
    }
    for (const [name, guess] of this.#guesses) {
      if (guess.untilMs > now && this.#guesses.size <= this.#blocksMax) break;
      this.#guesses.delete(name);
    }
  }

  /** How many blocks from the first on each engine holds. */
  prefixes(names: readonly BlockName[]): number[] {
    const found = this.#holdings.map(() => 0);
    const note = (engines: number, depth: number): void => {
      for (const [engine, { bit }] of this.#holdings.entries()) {
        if ((engines & bit) !== 0) found[engine] = depth;
      }
    };
    const now = nowMs();
    let trusted = 0;
    for (const { bit, isTrusted } of this.#holdings) if (isTrusted) trusted |= bit;
    let holders = -1;
    for (const [depth, name] of names.entries()) {
      const next = holders & (((this.#bits.get(name) ?? 0) & trusted) | this.#guessed(name, now));
      if (next !== holders) note(holders & ~next, depth);
      holders = next;
      if (holders === 0) return found;
    }
    note(holders, names.length);
    return found;
  }

  #guessed(name: BlockName, now: number): number {
    if (this.#guesses.size === 0) return 0;
    const guess = this.#guesses.get(name);
    return guess !== undefined && guess.untilMs > now ? guess.bits : 0;
  }

  #store(holding: Holding, event: Extract<KvEvent, { kind: "stored" }>): void {
    let parent = event.parent === null ? ROOT : holding.names.get(event.parent);
    if (parent === undefined) {
      holding.orphans += 1;
      return;
    }
    holding.blockSize = event.blockSize;
    holding.groups.add(event.group);
    for (const { hash, tokens, extra } of event.blocks) {
      parent = nameOf(parent, tokens, extra);
      const before = holding.names.get(hash);
      if (before !== undefined && before !== parent) this.#drop(holding, before);
      holding.names.set(hash, parent);
      this.#bits.set(parent, (this.#bits.get(parent) ?? 0) | holding.bit);
    }
    this.#makeRoom(holding);
  }

  #makeRoom(holding: Holding): void {
    for (const [hash, name] of holding.names) {
      if (holding.names.size <= this.#blocksMax) return;
      holding.names.delete(hash);
      this.#drop(holding, name);
    }
  }

  #drop(holding: Holding, name: BlockName): void {
    const bits = (this.#bits.get(name) ?? 0) & ~holding.bit;
    if (bits === 0) this.#bits.delete(name);
    else this.#bits.set(name, bits);
  }

  #of(engine: number): Holding {
    const holding = this.#holdings[engine];
    if (holding === undefined) throw new RangeError(`no engine ${engine}`);
    return holding;
  }
}

function remove(
  holding: Holding,
  event: Extract<KvEvent, { kind: "removed" }>,
  drop: (name: BlockName) => void,
): void {
  if (!holding.groups.has(event.group)) return;
  for (const hash of event.hashes) {
    const name = holding.names.get(hash);
    if (name === undefined) continue;
    holding.names.delete(hash);
    drop(name);
  }
}
