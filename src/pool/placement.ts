// Owns which vaults of a pool hold a block: runs of consecutive blocks by the hash of their first, the next live ones where the owner is down.
import { HASH_BYTES } from "../block.ts";
import { RUN_BLOCKS, SHARE_SAMPLES, STRIPE_PARTS } from "../limits-pool.ts";
import { Ring } from "./ring.ts";
import { Stripe, widthOf } from "./stripes.ts";

/** Stands for a vault where there is none: above POOL_CLIENTS_MAX. */
export const NO_VAULT = 0xff;
/** Stands for the vaults that hold what a block can be rebuilt from: above POOL_SEATS_MAX. */
export const REBUILT = 0xfe;

const STRIPE_PART = RUN_BLOCKS / STRIPE_PARTS;

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

/** The vaults of one class, by their place in the list that was given. */
export class Placement {
  readonly #members: readonly { name: string; node: number; weight: number }[];
  readonly #ring: Ring<number>;
  /** Records that one parity record stands for; 0: there is no parity, and runs are not cut. */
  readonly width: number;

  /** `names`: the same on every machine, in any order; `weights`: their shares, 0 for one that owns nothing. */
  constructor(
    names: readonly string[],
    weights: readonly number[] = names.map(() => 1),
    hasParity = false,
  ) {
    this.#members = names
      .map((name, node) => ({ name, node, weight: weights[node] ?? 0 }))
      .filter(({ weight }) => weight > 0);
    // A vault alone owns everything without a ring.
    this.#ring = new Ring(this.#isAlone ? [] : this.#members);
    this.width = hasParity ? widthOf(this.#members.length) : 0;
  }

  /** null: there is no parity. */
  stripeOf(anchor: Buffer, isDown: (vault: number) => boolean): Stripe | null {
    return this.width === 0 ? null : new Stripe(this.#ring, anchor, this.width, isDown);
  }

  get #isAlone(): boolean {
    return this.#members.length <= 1;
  }

  /**
   * Who holds the run whose first block has this hash: the owner, and the one that would own it next. Those that are down
   * (`isDown`) are passed over, so that all who know that they are agree; the owner itself where all are. `index`: of a block in its
   * prompt, where runs are cut.
   */
  homeOf(anchor: Buffer, isDown: (vault: number) => boolean, index = 0): Home {
    if (this.#isAlone) return { owner: this.#members[0]?.node ?? 0, second: NO_VAULT };
    const stripe = this.stripeOf(anchor, isDown);
    if (stripe !== null) return { owner: stripe.ownerOf(index), second: NO_VAULT };
    let [home, owner, second] = [NO_VAULT, NO_VAULT, NO_VAULT];
    for (const vault of this.#ring.ownersOf(anchor)) {
      if (home === NO_VAULT) home = vault;
      if (isDown(vault)) continue;
      if (owner !== NO_VAULT) {
        second = vault;
        break;
      }
      owner = vault;
    }
    return { owner: owner === NO_VAULT ? home : owner, second };
  }

  /** Of the blocks of a prompt, from its first one on. `isAlone`: each is placed by its own hash, because it is needed alone. */
  homesOf(hashes: Buffer, isAlone: boolean, isDown: (vault: number) => boolean): Homes {
    const count = hashes.length / HASH_BYTES;
    const owners = new Uint8Array(count);
    const seconds = new Uint8Array(count).fill(NO_VAULT);
    const run = isAlone ? 1 : RUN_BLOCKS;
    for (let first = 0; first < count; first += run) {
      const anchor = hashes.subarray(first * HASH_BYTES, (first + 1) * HASH_BYTES);
      const stripe = this.stripeOf(anchor, isDown);
      if (stripe !== null) {
        for (let at = first; at < Math.min(first + run, count); at += STRIPE_PART)
          owners.fill(stripe.ownerOf(at), at, at + STRIPE_PART);
        continue;
      }
      const { owner, second } = this.homeOf(anchor, isDown);
      owners.fill(owner, first, first + run);
      seconds.fill(second, first, first + run);
    }
    return { owners, seconds };
  }

  /** By vault: about which share of all runs it owns, from samples. */
  shares(): Map<number, number> {
    const counts = new Map(this.#members.map(({ node }) => [node, 0]));
    for (let sample = 0; sample < SHARE_SAMPLES; sample += 1) {
      const { owner } = this.homeOf(Buffer.from(`share-${sample}`), () => false, sample);
      counts.set(owner, (counts.get(owner) ?? 0) + 1);
    }
    return new Map([...counts].map(([vault, count]) => [vault, count / SHARE_SAMPLES]));
  }
}
