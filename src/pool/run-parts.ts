// Owns the vaults of one run's parts while some vaults are down.
import { PART_BLOCKS, RUN_BLOCKS } from "../base/limits/pool.ts";
import type { Layout } from "./layout.ts";

export class RunParts {
  readonly #layout: Layout;
  readonly #vaults: number;
  readonly #isDown: (vault: number) => boolean;

  /** `vaults`: number of vaults in the layout. */
  constructor(layout: Layout, vaults: number, isDown: (vault: number) => boolean) {
    this.#layout = layout;
    this.#vaults = vaults;
    this.#isDown = isDown;
  }

  /** Returns the vault of block `index` of a prompt while all are up. */
  usualOf(index: number): number {
    return this.#layout[partOf(index) * this.#vaults] ?? 0;
  }

  /** Returns up to `most` live vaults for the block, by rank. */
  homesOf(index: number, most: number): number[] {
    const homes: number[] = [];
    const at = partOf(index) * this.#vaults;
    for (const vault of this.#layout.subarray(at, at + this.#vaults)) {
      if (homes.length === most) break;
      if (!this.#isDown(vault)) homes.push(vault);
    }
    return homes;
  }
}

function partOf(index: number): number {
  return Math.floor((index % RUN_BLOCKS) / PART_BLOCKS);
}
