// Owns what is believed of blocks for a while: of which engines, until when, and never more blocks than it may.
import { nowMs } from "../../time.ts";
import type { BlockName } from "./chain.ts";

interface Belief {
  bits: number;
  untilMs: number;
}

/** All are believed for the same time, so the oldest come first. */
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

  /** Of these engines, besides those that it is believed of already. */
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

  /** 0: of none. */
  get(name: BlockName, now: number): number {
    if (this.#beliefs.size === 0) return 0;
    const belief = this.#beliefs.get(name);
    return belief !== undefined && belief.untilMs > now ? belief.bits : 0;
  }

  delete(name: BlockName): void {
    this.#beliefs.delete(name);
  }

  /** Of this engine nothing is believed any more. */
  forget(bit: number): void {
    for (const [name, belief] of this.#beliefs) {
      if (belief.bits === bit) this.#beliefs.delete(name);
      else belief.bits &= ~bit;
    }
  }
}
