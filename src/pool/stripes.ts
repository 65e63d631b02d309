// Owns how the blocks of a run are spread over a ring: its parts on several vaults by their shares, and where parity is kept, that on one more.
import {
  PARITY_VAULTS_MIN,
  PARITY_VAULTS_WIDE,
  RUN_BLOCKS,
  SHARE_SLACK,
  STRIPE_PARTS,
} from "../limits-pool.ts";
import { placeOf } from "./ring.ts";
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

/** How the parts of a run are spread over vaults. */
export interface Spread {
  /** So many consecutive ones share a parity record, and lie on distinct vaults; 0: there is none. */
  readonly width: number;
  /** So many of all a vault takes at most. */
  quotaOf(vault: number): number;
}

/** Each vault takes of every run what its share is of all, rounded up: so all send at once, and none is waited for. */
export function spreadOver(weights: readonly number[], width: number): Spread {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const quotas = weights.map((weight) =>
    Math.max(1, Math.ceil((STRIPE_PARTS * weight) / total - SHARE_SLACK)),
  );
  return { width, quotaOf: (vault) => quotas[vault] ?? 1 };
}

/** The vaults of one run of blocks. */
export class Stripe {
  readonly #ring: Ring<number>;
  readonly #anchor: Buffer;
  readonly #place: string;
  readonly #spread: Spread;
  readonly #isDown: IsFit;
  /** Of each part, while all are up. */
  readonly #usual: number[] = [];

  /** `anchor`: hash of the first block. */
  constructor(ring: Ring<number>, anchor: Buffer, spread: Spread, isDown: IsFit) {
    this.#ring = ring;
    this.#anchor = anchor;
    this.#place = placeOf(anchor);
    this.#spread = spread;
    this.#isDown = isDown;
    for (let part = 0; part < STRIPE_PARTS; part += 1) {
      const group = spread.width === 0 ? [] : this.#usual.slice(part - (part % spread.width));
      const isApart: IsFit = (vault) => !group.includes(vault);
      const hasRoom: IsFit = (vault) =>
        isApart(vault) && countOf(this.#usual, vault) < spread.quotaOf(vault);
      this.#usual.push(this.#first(part, [hasRoom, isApart]) ?? 0);
    }
  }

  /** Who holds block `index` of a prompt while all are up. */
  usualOf(index: number): number {
    return this.#usual[partOf(index)] ?? 0;
  }

  /** Who holds it where no parity is kept, and who would next, `most` of them: the first that are up, whatever they hold of the run. */
  homesOf(index: number, most: number): number[] {
    const usual = this.usualOf(index);
    const homes = this.#isDown(usual) ? [] : [usual];
    if (homes.length === most) return homes;
    for (const vault of this.#ring.ownersAt(this.#placeOf(partOf(index)))) {
      if (homes.length === most) break;
      if (vault !== usual && !this.#isDown(vault)) homes.push(vault);
    }
    return homes;
  }

  /** Who holds it where parity is kept. Where one is down another takes its part, and all others keep theirs. */
  ownerOf(index: number): number {
    const usual = this.usualOf(index);
    if (!this.#isDown(usual)) return usual;
    const group = this.#groupOf(index);
    const parity = this.#parityVault(index);
    const other = this.#first(partOf(index), [
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
    const owners = membersOf(index, this.#spread.width).map((member) => this.ownerOf(member));
    return new Set([...owners, vault]).size === owners.length + 1 ? vault : null;
  }

  #parityVault(index: number, isFit: IsFit = () => true): number | null {
    const group = this.#groupOf(index);
    const name = STRIPE_PARTS + Math.floor(partOf(index) / this.#spread.width);
    return this.#first(name, [(vault) => !group.includes(vault) && isFit(vault)]);
  }

  #groupOf(index: number): number[] {
    const part = partOf(index);
    const { width } = this.#spread;
    const first = part - (part % width);
    return this.#usual.slice(first, first + width);
  }

  /** Where on the ring a part begins: each quarter of a digest is as good as the first. Parity has digests of its own. */
  #placeOf(name: number): string {
    if (name >= STRIPE_PARTS) return placeOf(`${this.#anchor.toString("hex")}-${name}`);
    const at = (name * this.#place.length) / STRIPE_PARTS;
    return this.#place.slice(at) + this.#place.slice(0, at);
  }

  /** The first vault for a name of this stripe that is fit by the first rule, else by the next. */
  #first(name: number, rules: readonly IsFit[]): number | null {
    const found: (number | undefined)[] = rules.map(() => undefined);
    for (const vault of this.#ring.ownersAt(this.#placeOf(name))) {
      for (const [at, isFit] of rules.entries()) if (isFit(vault)) found[at] ??= vault;
      if (found[0] !== undefined) break;
    }
    return found.find((vault) => vault !== undefined) ?? null;
  }
}

function countOf(vaults: readonly number[], vault: number): number {
  return vaults.reduce((count, one) => count + Number(one === vault), 0);
}

function partOf(index: number): number {
  return Math.floor((index % RUN_BLOCKS) / PART_BLOCKS);
}
