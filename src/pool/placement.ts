// Owns the choice of vaults for a block: parts of runs by the hash of the run's first block, live vaults first.
import { HASH_BYTES } from "../base/block.ts";
import { LAYOUTS, PART_BLOCKS, RUN_BLOCKS, SHARE_SAMPLES } from "../base/limits/pool.ts";
import type { Layout, Member } from "./layout.ts";
import { layoutsOf } from "./layouts.ts";
import { placeOf, Ring } from "./ring.ts";
import { RunParts } from "./run-parts.ts";

/** Stands for no vault, because it is above POOL_CLIENTS_MAX. */
export const NO_VAULT = 0xff;

/** Hexadecimal digits of a digest that choose a layout. */
const PLACE_DIGITS = 8;

/** Index of the first block of the run that block `index` of a prompt lies in. */
export function anchorOf(index: number): number {
  return index - (index % RUN_BLOCKS);
}

/** The vault that owns a block, and the one of its second copy. */
export interface Home {
  owner: number;
  second: number;
}

/** The same by block of a prompt. */
export interface Homes {
  owners: Uint8Array;
  /** NO_VAULT: no second copy. */
  seconds: Uint8Array;
}

/** whole: each block by its own hash, because it is needed alone · parts: runs in parts. */
export type Cut = "whole" | "parts";
type IsDown = (vault: number) => boolean;

/** The vaults of one class, by their position in the given list. */
export class Placement {
  readonly #members: readonly Member[];
  /** null: runs are cut, by layouts. */
  readonly #ring: Ring<number> | null;
  /** null: nothing is cut. */
  readonly #layoutOf: ((number: number) => Layout) | null;

  /** `names`: the same on every machine, in any order; `weights`: their shares, 0 for a vault that owns nothing. */
  constructor(
    names: readonly string[],
    weights: readonly number[] = names.map(() => 1),
    cut: Cut = "parts",
  ) {
    this.#members = names
      .map((name, node) => ({ name, node, weight: weights[node] ?? 0 }))
      .filter(({ weight }) => weight > 0)
      // Ties in cost go by this order, which is the same on every machine.
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
    // A vault alone owns everything, so it needs no ring.
    this.#ring = cut === "whole" ? new Ring(this.#isAlone ? [] : this.#members) : null;
    const isCut = this.#ring === null && !this.#isAlone;
    this.#layoutOf = isCut ? layoutsOf(this.#members) : null;
  }

  #cut(anchor: Buffer, isDown: IsDown): RunParts | null {
    if (this.#layoutOf === null) return null;
    const number = Number.parseInt(placeOf(anchor).slice(0, PLACE_DIGITS), 16) % LAYOUTS;
    return new RunParts(this.#layoutOf(number), this.#members.length, isDown);
  }

  get #isAlone(): boolean {
    return this.#members.length <= 1;
  }

  /**
   * Returns the owner of block `index` of the run that begins with hash `anchor`, and the next owner. Vaults that are down
   * are skipped, so that all clients with the same view agree; where all are down, the owner itself.
   */
  homeOf(anchor: Buffer, isDown: IsDown, index = 0): Home {
    if (this.#isAlone) return { owner: this.#members[0]?.node ?? 0, second: NO_VAULT };
    const parts = this.#cut(anchor, isDown);
    return parts === null ? this.#wholeHome(anchor, isDown) : homeIn(parts, index, true);
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

  /** Returns the homes of a prompt's blocks, from the first on. */
  homesOf(hashes: Buffer, isDown: IsDown, hasSeconds = true): Homes {
    const count = hashes.length / HASH_BYTES;
    const owners = new Uint8Array(count);
    const seconds = new Uint8Array(count).fill(NO_VAULT);
    const [run, part] = this.#ring === null ? [RUN_BLOCKS, PART_BLOCKS] : [1, 1];
    for (let first = 0; first < count; first += run) {
      const anchor = hashes.subarray(first * HASH_BYTES, (first + 1) * HASH_BYTES);
      const parts = this.#isAlone ? null : this.#cut(anchor, isDown);
      for (let at = first; at < Math.min(first + run, count); at += part) {
        const home = parts === null ? this.homeOf(anchor, isDown) : homeIn(parts, at, hasSeconds);
        owners.fill(home.owner, at, at + part);
        seconds.fill(home.second, at, at + part);
      }
    }
    return { owners, seconds };
  }

  /** Returns the owners of made-up blocks, the same ones each time. */
  samples(): Uint8Array {
    const run = this.#ring === null ? RUN_BLOCKS : 1;
    const hashes = Buffer.alloc(SHARE_SAMPLES * HASH_BYTES);
    for (let at = 0; at < SHARE_SAMPLES; at += run) hashes.write(`share-${at}`, at * HASH_BYTES);
    return this.homesOf(hashes, () => false, false).owners;
  }

  /** Returns each vault's approximate share of all blocks, from samples. */
  shares(): Map<number, number> {
    const counts = new Map(this.#members.map(({ node }) => [node, 0]));
    for (const owner of this.samples()) counts.set(owner, (counts.get(owner) ?? 0) + 1);
    return new Map([...counts].map(([vault, count]) => [vault, count / SHARE_SAMPLES]));
  }
}

function homeIn(parts: RunParts, index: number, hasSecond: boolean): Home {
  const [owner = parts.usualOf(index), second = NO_VAULT] = parts.homesOf(index, hasSecond ? 2 : 1);
  return { owner, second };
}
