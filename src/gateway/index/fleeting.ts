// Owns short-lived beliefs about blocks: for which engines, until when, and bounded in number.
import { nowMs } from "../../time.ts";
import type { BlockName } from "./chain.ts";

interface Belief {
  bits: number;
  untilMs: number;
}

/** All beliefs last equally long, so the oldest come first. */
export class Fleeting {
  readonly #beliefs = new Map<BlockName, Belief>();
  readonly #keptMs: number;
  readonly #blocksMax: number;

  constructor(keptMs: number, blocksMax: number) {
    this.#keptMs = keptMs;
    this.#blocksMax = blocksMax;
  }

  get size(): number {
    return this.#beliefs.size;
  }

  /** Believes these blocks of these engines, besides those believed before. */
  add(bits: number, names: readonly BlockName[]): void {
    const now = nowMs();
    const untilMs = now + this.#keptMs;
    for (const name of names) {
      const before = this.get(name, now);
      this.#beliefs.delete(name);
      this.#beliefs.set(name, { bits: before | bits, untilMs });
    }
    for (const [name, { untilMs: endMs }] of this.#beliefs) {
      if (endMs > now && this.#beliefs.size <= this.#blocksMax) break;
      this.#beliefs.delete(name);
    }
  }

  /** Returns 0 where nothing is believed. */
  get(name: BlockName, now: number): number {
    if (this.#beliefs.size === 0) return 0;
    const belief = this.#beliefs.get(name);
    return belief !== undefined && belief.untilMs > now ? belief.bits : 0;
  }

  delete(name: BlockName): void {
    this.#beliefs.delete(name);
  }

  /** Drops all beliefs about this engine. */
  forget(bit: number): void {
    for (const [name, belief] of this.#beliefs) {
      if (belief.bits === bit) this.#beliefs.delete(name);
      else belief.bits &= ~bit;
    }
  }
}
