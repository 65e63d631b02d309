// Owns how the blocks of a run are spread over a ring where parity is kept: those that share a parity record on distinct vaults, and that on one more.
import { PARITY_VAULTS_MIN, PARITY_VAULTS_WIDE, RUN_BLOCKS, STRIPE_PARTS } from "../limits-pool.ts";
import type { Ring } from "./ring.ts";

const PART_BLOCKS = RUN_BLOCKS / STRIPE_PARTS;
type IsFit = (vault: number) => boolean;

/** Records that one parity record stands for; 0: there are too few vaults. */
export function widthOf(vaults: number): number {
  if (vaults < PARITY_VAULTS_MIN) return 0;
  return vaults < PARITY_VAULTS_WIDE ? STRIPE_PARTS / 2 : STRIPE_PARTS;
}

/** The blocks of a prompt that share a parity record with block `index`, it included, in order. */
export function membersOf(index: number, width: number): number[] {
  const inRun = index % RUN_BLOCKS;
  const groupBlocks = width * PART_BLOCKS;
  const first = index - (inRun % groupBlocks) + (inRun % PART_BLOCKS);
  return Array.from({ length: width }, (_none, at) => first + at * PART_BLOCKS);
}

/** The vaults of one run of blocks. */
export class Stripe {
  readonly #ring: Ring<number>;
  readonly #anchor: string;
  readonly #width: number;
  readonly #isDown: IsFit;
  /** Of each part, while all are up. */
  readonly #usual: number[] = [];

  /** `anchor`: hash of the first block. */
  constructor(ring: Ring<number>, anchor: Buffer, width: number, isDown: IsFit) {
    this.#ring = ring;
    this.#anchor = anchor.toString("hex");
    this.#width = width;
    this.#isDown = isDown;
    for (let part = 0; part < STRIPE_PARTS; part += 1) {
      const group = this.#usual.slice(part - (part % width));
      this.#usual.push(this.#first(part, [(vault) => !group.includes(vault)]) ?? 0);
    }
  }

  /** Who holds block `index` of a prompt. Where one is down another takes its part, and all others keep theirs. */
  ownerOf(index: number): number {
    const part = partOf(index);
    const usual = this.#usual[part] ?? 0;
    if (!this.#isDown(usual)) return usual;
    const group = this.#groupOf(index);
    const parity = this.#parityVault(index);
    const other = this.#first(part, [
      (vault) => !this.#isDown(vault) && !group.includes(vault) && vault !== parity,
      (vault) => !this.#isDown(vault) && !group.includes(vault),
      (vault) => !this.#isDown(vault),
    ]);
    return other ?? usual;
  }

  /** Where the parity record that stands for block `index` is looked for; null: nowhere. */
  parityOf(index: number): number | null {
    const usual = this.#parityVault(index);
    return usual === null || !this.#isDown(usual)
      ? usual
      : this.#parityVault(index, (vault) => !this.#isDown(vault));
  }

  /** Where it is stored: null where the loss of one vault would take two of what belongs together. */
  parityFor(index: number): number | null {
    const vault = this.parityOf(index);
    if (vault === null) return null;
    const owners = membersOf(index, this.#width).map((member) => this.ownerOf(member));
    return new Set([...owners, vault]).size === owners.length + 1 ? vault : null;
  }

  #parityVault(index: number, isFit: IsFit = () => true): number | null {
    const group = this.#groupOf(index);
    const name = STRIPE_PARTS + Math.floor(partOf(index) / this.#width);
    return this.#first(name, [(vault) => !group.includes(vault) && isFit(vault)]);
  }

  #groupOf(index: number): number[] {
    const part = partOf(index);
    const first = part - (part % this.#width);
    return this.#usual.slice(first, first + this.#width);
  }

  /** The first vault for a name of this stripe that is fit by the first rule, else by the next. */
  #first(name: number, rules: readonly IsFit[]): number | null {
    const found: (number | undefined)[] = rules.map(() => undefined);
    for (const vault of this.#ring.ownersOf(`${this.#anchor}-${name}`)) {
      for (const [at, isFit] of rules.entries()) if (isFit(vault)) found[at] ??= vault;
      if (found[0] !== undefined) break;
    }
    return found.find((vault) => vault !== undefined) ?? null;
  }
}

function partOf(index: number): number {
  return Math.floor((index % RUN_BLOCKS) / PART_BLOCKS);
}
