// Owns which vault of a pool holds a block: runs of consecutive blocks by the hash of their first, the next live one where the owner is down.
import { HASH_BYTES } from "../block.ts";
import { RUN_BLOCKS } from "../limits-pool.ts";
import { Ring } from "./ring.ts";

/** Index of the first block of the run that block `index` of a prompt lies in. */
export function anchorOf(index: number): number {
  return index - (index % RUN_BLOCKS);
}

/** The vaults of one class, by their place in the list that was given. */
export class Placement {
  readonly #count: number;
  readonly #ring: Ring<number>;

  /** `names`: the same on every machine, in any order. */
  constructor(names: readonly string[]) {
    this.#count = names.length;
    // A vault alone owns everything without a ring.
    const shared = names.length > 1 ? names : [];
    this.#ring = new Ring(shared.map((name, node) => ({ name, node })));
  }

  /**
   * Who owns the run whose first block has this hash. The next one in the order of the ring where that one `isDown`, so that
   * all who know that it is agree; the owner itself where all are.
   */
  ownerOf(anchor: Buffer, isDown: (vault: number) => boolean): number {
    if (this.#count <= 1) return 0;
    let owner: number | null = null;
    for (const vault of this.#ring.ownersOf(anchor)) {
      if (!isDown(vault)) return vault;
      owner ??= vault;
    }
    return owner ?? 0;
  }

  /** Owners of the blocks of a prompt, from its first one on. `isAlone`: each is placed by its own hash, because it is needed alone. */
  ownersOf(hashes: Buffer, isAlone: boolean, isDown: (vault: number) => boolean): Uint8Array {
    const owners = new Uint8Array(hashes.length / HASH_BYTES);
    if (this.#count <= 1) return owners;
    const run = isAlone ? 1 : RUN_BLOCKS;
    for (let first = 0; first < owners.length; first += run) {
      const anchor = hashes.subarray(first * HASH_BYTES, (first + 1) * HASH_BYTES);
      owners.fill(this.ownerOf(anchor, isDown), first, first + run);
    }
    return owners;
  }
}
