// Owns the gateway's use of the index in the core: which engine, or rank, holds which block, as their events report.
import {
  GATEWAY_FOUND_BLOCKS_MAX,
  GATEWAY_FOUND_MS,
  GATEWAY_INDEX_BLOCKS_MAX,
  GATEWAY_SPECULATION_MS,
} from "../../base/limits/gateway.ts";
import { IndexCore, nameBlocks } from "../../base/native.ts";
import type { IndexReport, IndexView } from "../../base/native.ts";
import { nowMs } from "../../base/time.ts";

/** Token ids of a prompt. */
export type Tokens = readonly number[] | Uint32Array;

/** Where blocks are: in the engine's own memory, or in vaults from which it can pull them. */
export type Tier = "gpu" | "vault";

/** A prompt's blocks, by the hashes that some engines have for them or by names of the index's own. */
export type View = IndexView;

/** Tokens of a prompt that an engine holds itself, and that it has after pulling from vaults. */
export interface Held {
  held: number;
  reach: number;
}

/** Wishes for the news of an engine's events besides blocks. */
export interface Wants {
  /** Names for all blocks; else only for blocks whose hashes have inputs besides tokens. */
  hasNames: boolean;
  /** The first blocks of each so many prompts; 0: of none. */
  every: number;
  /** The first blocks of prompts whose hashes have inputs besides tokens. */
  hasExtras: boolean;
}

/** Engines, and ranks of engines, have numbers from `add`. */
export class BlockIndex {
  readonly #core: IndexCore;

  /** `engines`: how many have a number from the start on, from 0. */
  constructor(engines = 0, blocksMax: number = GATEWAY_INDEX_BLOCKS_MAX) {
    this.#core = new IndexCore({
      blocks: blocksMax,
      guessMs: GATEWAY_SPECULATION_MS,
      foundMs: GATEWAY_FOUND_MS,
      found: GATEWAY_FOUND_BLOCKS_MAX,
    });
    for (let at = 0; at < engines; at += 1) this.add();
  }

  add(): number {
    return this.#core.add();
  }

  remove(engine: number): void {
    this.#core.remove(engine);
  }

  /** Applies a batch of events; null: it tells nothing besides blocks. */
  apply(engine: number, payload: Buffer): IndexReport | null {
    return this.#core.apply(engine, payload);
  }

  /** Drops all that an engine reported. */
  clear(engine: number): void {
    this.#core.clear(engine);
  }

  /** An engine whose events are incomplete counts as holding nothing. */
  trust(engine: number, isTrusted: boolean): void {
    this.#core.trust(engine, isTrusted);
  }

  want(engine: number, { hasNames, every, hasExtras }: Wants): void {
    this.#core.want(engine, hasNames, every, hasExtras);
  }

  /** Expects hashes of a prompt on its way there, made in the form of this number. */
  expect(engine: number, form: number, hashes: Buffer): void {
    this.#core.expect(engine, form, hashes);
  }

  /** Assumes a prompt on an engine, because it is computed there now or shortly. */
  guess(engine: number, view: View): void {
    this.#core.guess(engine, view, nowMs());
  }

  /** Notes blocks that a vault reported by their hashes, 32 bytes each, for engines that can pull them. */
  found(engines: readonly number[], hashes: Buffer): void {
    this.#core.found(Uint32Array.from(engines), hashes, nowMs());
  }

  /**
   * Returns for each engine what it holds of a prompt, in every group of its layers, and what it has after pulling. Blocks in
   * vaults that one of the `peers` (same model) reported can be pulled by every peer that pulls.
   */
  spans(engines: readonly number[], peers: readonly number[], view: View): Held[] {
    const [asked, all] = [Uint32Array.from(engines), Uint32Array.from(peers)];
    const found = this.#core.spans(asked, all, view, nowMs());
    return engines.map((_engine, at) => ({
      held: found[2 * at] ?? 0,
      reach: found[2 * at + 1] ?? 0,
    }));
  }

  /** Number of blocks that an engine reported. */
  blocks(engine: number, tier: Tier = "gpu"): number {
    return this.#core.blocks(engine, tier === "vault");
  }

  /** Number of blocks that vaults reported lately. */
  get foundBlocks(): number {
    return this.#core.foundBlocks();
  }

  /** Blocks of an engine's own memory that go for each that comes: 0 while it has room, 1 once it is full. */
  pressure(engine: number): number {
    return this.#core.pressure(engine);
  }

  /** Whether an engine can pull from vaults, as its events show. */
  pulls(engine: number): boolean {
    return this.#core.pulls(engine);
  }

  /** Tokens of an engine's blocks; before it reports any, of another engine's; null: none has. */
  blockSize(engine: number): number | null {
    return this.#core.unit(engine);
  }

  /** Returns an engine's part of the index. */
  save(engine: number): Buffer {
    return this.#core.save(engine);
  }

  /** Restores a saved part; requests rely on it only once it is trusted. Returns false where the bytes are no such part. */
  load(engine: number, bytes: Buffer): boolean {
    return this.#core.load(engine, bytes);
  }
}

/**
 * Returns a prompt's blocks by names of the index's own, for engines whose form of hashes is not known. `everywhere` enters
 * each block, `salt` the first and so all.
 */
export function namesOf(
  tokens: Tokens,
  unit: number,
  everywhere: readonly string[],
  salt: string | null,
): View {
  const ids = tokens instanceof Uint32Array ? tokens : new Uint32Array(tokens);
  const blocks = nameBlocks(ids, unit, [...everywhere], salt);
  return { blocks, areNames: true, unit, tokens: tokens.length };
}
