// Owns the vaults of one run of blocks while some are down, and the groups of blocks that share a parity record.
import {
  PARITY_MEMBERS,
  PARITY_MEMBERS_WIDE,
  PARITY_VAULTS_MIN,
  PARITY_VAULTS_WIDE,
  PART_BLOCKS,
  RUN_BLOCKS,
} from "../base/limits/pool.ts";
import type { Layout } from "./layout.ts";

type IsFit = (vault: number) => boolean;

/** Returns the records that one parity record covers; 0: too few vaults. */
export function widthOf(vaults: number): number {
  if (vaults < PARITY_VAULTS_MIN) return 0;
  return vaults < PARITY_VAULTS_WIDE ? PARITY_MEMBERS : PARITY_MEMBERS_WIDE;
}

/** Returns the blocks of a prompt that share a parity record with block `index`, itself included, in order. */
export function membersOf(index: number, width: number): number[] {
  const first = index - (index % (width * PART_BLOCKS)) + (index % PART_BLOCKS);
  return Array.from({ length: width }, (_none, at) => first + at * PART_BLOCKS);
}

/** The vaults of one run of blocks. */
export class Stripe {
  readonly #layout: Layout;
  readonly #vaults: number;
  readonly #width: number;
  readonly #isDown: IsFit;

  /** `vaults`: number of vaults. */
  constructor(layout: Layout, vaults: number, width: number, isDown: IsFit) {
    this.#layout = layout;
    this.#vaults = vaults;
    this.#width = width;
    this.#isDown = isDown;
  }

  /** Returns the vault of block `index` of a prompt while all are up. */
  usualOf(index: number): number {
    return this.#layout.parts[partOf(index) * this.#vaults] ?? 0;
  }

  /** Returns up to `most` vaults for the block where no parity is kept: the first live ones, whatever else they hold. */
  homesOf(index: number, most: number): number[] {
    const homes: number[] = [];
    for (const vault of this.#ranked(index)) {
      if (homes.length === most) break;
      if (!this.#isDown(vault)) homes.push(vault);
    }
    return homes;
  }

  /** Returns the block's vault where parity is kept; of a vault that is down another takes its part, and all others keep theirs. */
  ownerOf(index: number): number {
    const usual = this.usualOf(index);
    if (!this.#isDown(usual)) return usual;
    const group = this.#groupOf(index);
    const parity = this.#parityVault(index);
    const other = firstOf(this.#ranked(index), [
      (vault) => !this.#isDown(vault) && !group.includes(vault) && vault !== parity,
      (vault) => !this.#isDown(vault) && !group.includes(vault),
      (vault) => !this.#isDown(vault),
    ]);
    return other ?? usual;
  }

  /** Returns the vault of the parity record that covers block `index`; null: none. */
  parityOf(index: number): number | null {
    const usual = this.#parityVault(index);
    return usual === null || !this.#isDown(usual)
      ? usual
      : this.#parityVault(index, (vault) => !this.#isDown(vault));
  }

  /** Returns the vault to store that parity on; null where one lost vault would take two records of the group. */
  parityFor(index: number): number | null {
    const vault = this.parityOf(index);
    if (vault === null) return null;
    const owners = membersOf(index, this.#width).map((member) => this.ownerOf(member));
    return new Set([...owners, vault]).size === owners.length + 1 ? vault : null;
  }

  #parityVault(index: number, isFit: IsFit = () => true): number | null {
    const group = this.#groupOf(index);
    const at = Math.floor(partOf(index) / this.#width) * this.#vaults;
    const ranked = this.#layout.parity.subarray(at, at + this.#vaults);
    return firstOf(ranked, [(vault) => !group.includes(vault) && isFit(vault)]);
  }

  #groupOf(index: number): number[] {
    return membersOf(index, this.#width).map((member) => this.usualOf(member));
  }

  #ranked(index: number): Uint8Array {
    const at = partOf(index) * this.#vaults;
    return this.#layout.parts.subarray(at, at + this.#vaults);
  }
}

/** Returns the first vault that satisfies the first rule, else the next rule, and so on. */
function firstOf(vaults: Uint8Array, rules: readonly IsFit[]): number | null {
  for (const isFit of rules) {
    const found = vaults.find((vault) => isFit(vault));
    if (found !== undefined) return found;
  }
  return null;
}

function partOf(index: number): number {
  return Math.floor((index % RUN_BLOCKS) / PART_BLOCKS);
}
