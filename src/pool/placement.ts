// Owns which vaults of a pool hold a block: parts of runs of consecutive blocks by the hash of the first, the next live ones where the owner is down.
import { HASH_BYTES } from "../block.ts";
import { LAYOUTS, PART_BLOCKS, RUN_BLOCKS, SHARE_SAMPLES } from "../limits/pool.ts";
import type { Layout, Member } from "./layout.ts";
import { layoutsOf } from "./layouts.ts";
import { placeOf, Ring } from "./ring.ts";
import { Stripe, widthOf } from "./stripes.ts";

/** Stands for a vault where there is none: above POOL_CLIENTS_MAX. */
export const NO_VAULT = 0xff;
/** Stands for the vaults that hold what a block can be rebuilt from: above POOL_SEATS_MAX. */
export const REBUILT = 0xfe;

/** Hexadecimal ones of a digest that choose a layout. */
const PLACE_DIGITS = 8;

/** Index of the first block of the run that block `index` of a prompt lies in. */
export function anchorOf(index: number): number {
  return index - (index % RUN_BLOCKS);
}

/** Where a block lies, and where its second copy does. */
export interface Home {
  owner: number;
  second: number;
}

/** By block of a prompt. */
export interface Homes {
  owners: Uint8Array;
  /** NO_VAULT: there is none. */
  seconds: Uint8Array;
}

/** whole: each block by its own hash, because it is needed alone · parts: runs in parts · parity: the same, and parts share parity records. */
export type Cut = "whole" | "parts" | "parity";
type IsDown = (vault: number) => boolean;

/** The vaults of one class, by their place in the list that was given. */
export class Placement {
  readonly #members: readonly Member[];
  /** null: runs are cut, by layouts. */
  readonly #ring: Ring<number> | null;
  /** null: nothing is cut. */
  readonly #layoutOf: ((number: number) => Layout) | null;
  /** Records that one parity record stands for; 0: there is no parity. */
  readonly width: number;

  /** `names`: the same on every machine, in any order; `weights`: their shares, 0 for one that owns nothing. */
  constructor(
    names: readonly string[],
    weights: readonly number[] = names.map(() => 1),
    cut: Cut = "parts",
  ) {
    this.#members = names
      .map((name, node) => ({ name, node, weight: weights[node] ?? 0 }))
      .filter(({ weight }) => weight > 0)
      // Equal costs go by this order, which is the same on every machine.
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
    // A vault alone owns everything without a ring.
    this.#ring = cut === "whole" ? new Ring(this.#isAlone ? [] : this.#members) : null;
    this.width = cut === "parity" ? widthOf(this.#members.length) : 0;
    const isCut = this.#ring === null && !this.#isAlone;
    this.#layoutOf = isCut ? layoutsOf(this.#members, this.width) : null;
  }

  /** null: there is no parity. */
  stripeOf(anchor: Buffer, isDown: IsDown): Stripe | null {
    return this.width === 0 ? null : this.#cut(anchor, isDown);
  }

  #cut(anchor: Buffer, isDown: IsDown): Stripe | null {
    if (this.#layoutOf === null) return null;
    const number = Number.parseInt(placeOf(anchor).slice(0, PLACE_DIGITS), 16) % LAYOUTS;
    return new Stripe(this.#layoutOf(number), this.#members.length, this.width, isDown);
  }

  get #isAlone(): boolean {
    return this.#members.length <= 1;
  }

  /**
   * Who holds block `index` of the run whose first one has this hash: the owner, and the one that would own it next. Those that are down
   * (`isDown`) are passed over, so that all who know that they are agree; the owner itself where all are.
   */
  homeOf(anchor: Buffer, isDown: IsDown, index = 0): Home {
    if (this.#isAlone) return { owner: this.#members[0]?.node ?? 0, second: NO_VAULT };
    const stripe = this.#cut(anchor, isDown);
    return stripe === null ? this.#wholeHome(anchor, isDown) : this.#homeIn(stripe, index, true);
  }

  #wholeHome(hash: Buffer, isDown: IsDown): Home {
    let [home, owner] = [NO_VAULT, NO_VAULT];
    for (const vault of this.#ring?.ownersOf(hash) ?? []) {
      if (home === NO_VAULT) home = vault;
      if (isDown(vault)) continue;
      if (owner !== NO_VAULT) return { owner, second: vault };
      owner = vault;
    }
    return { owner: owner === NO_VAULT ? home : owner, second: NO_VAULT };
  }

  #homeIn(stripe: Stripe, index: number, hasSecond: boolean): Home {
    if (this.width > 0) return { owner: stripe.ownerOf(index), second: NO_VAULT };
    const usual = stripe.usualOf(index);
    const [owner = usual, second = NO_VAULT] = stripe.homesOf(index, hasSecond ? 2 : 1);
    return { owner, second };
  }

  /** Of the blocks of a prompt, from its first one on. */
  homesOf(hashes: Buffer, isDown: IsDown, hasSeconds = true): Homes {
    const count = hashes.length / HASH_BYTES;
    const owners = new Uint8Array(count);
    const seconds = new Uint8Array(count).fill(NO_VAULT);
    const [run, part] = this.#ring === null ? [RUN_BLOCKS, PART_BLOCKS] : [1, 1];
    for (let first = 0; first < count; first += run) {
      const anchor = hashes.subarray(first * HASH_BYTES, (first + 1) * HASH_BYTES);
      const stripe = this.#isAlone ? null : this.#cut(anchor, isDown);
      for (let at = first; at < Math.min(first + run, count); at += part) {
        const home =
          stripe === null ? this.homeOf(anchor, isDown) : this.#homeIn(stripe, at, hasSeconds);
        owners.fill(home.owner, at, at + part);
        seconds.fill(home.second, at, at + part);
      }
    }
    return { owners, seconds };
  }

  /** Owners of the same blocks of made-up prompts each time. */
  samples(): Uint8Array {
    const run = this.#ring === null ? RUN_BLOCKS : 1;
    const hashes = Buffer.alloc(SHARE_SAMPLES * HASH_BYTES);
    for (let at = 0; at < SHARE_SAMPLES; at += run) hashes.write(`share-${at}`, at * HASH_BYTES);
    return this.homesOf(hashes, () => false, false).owners;
  }

  /** By vault: about which share of all blocks it owns, from samples. */
  shares(): Map<number, number> {
    const counts = new Map(this.#members.map(({ node }) => [node, 0]));
    for (const owner of this.samples()) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    return new Map([...counts].map(([vault, count]) => [vault, count / SHARE_SAMPLES]));
  }
}
