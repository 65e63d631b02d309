// Owns the offers of a look-up's answer: which vault serves each block, and neighbours that are offered alike in one offer.
import { hasBit } from "../../base/block.ts";
import type { BlockSource } from "../../client/source.ts";
import { NO_VAULT } from "../../pool/placement.ts";
import type { RunOffer } from "../slots/block.ts";
import type { Places } from "../vaults/pools.ts";

/** One vault's answer about a group's blocks. */
export interface Said {
  /** Bitmap of the blocks that it has with all shards, its archive's included. */
  readonly said: Buffer;
  /** Records per block that only its archive has, and the archive; null: none. */
  readonly archived: { readonly source: BlockSource; readonly counts: Uint8Array } | null;
}

/** Counts a block that was found at a former owner. */
type OnMoved = (vault: number) => void;

/** Returns the offers of `count` blocks, held or not, from the first on without a gap. `answers`: by vault. */
export function offersOf(
  count: number,
  places: Places,
  answers: readonly Said[],
  onMoved: OnMoved,
): readonly RunOffer[] {
  const choice = new Choice(places, answers, onMoved);
  if (choice.isPlain) return [{ ...choice.at(0), first: 0, end: count }];
  const offers: RunOffer[] = [];
  for (let index = 0; index < count; index += 1) {
    const offer = choice.at(index);
    const last = offers.at(-1);
    if (last !== undefined && isAlike(last, offer)) last.end = index + 1;
    else offers.push({ ...offer, first: index, end: index + 1 });
  }
  return offers;
}

type Chosen = Omit<RunOffer, "first" | "end">;

function isAlike(one: Chosen, other: Chosen): boolean {
  return (
    one.vault === other.vault && one.second === other.second && one.archived === other.archived
  );
}

/** Chooses each block's vault: the likeliest of the ones that have it or are to have it, and another one. */
class Choice {
  readonly #places: Places;
  readonly #lists: readonly Uint8Array[];
  readonly #answers: readonly Said[];
  readonly #onMoved: OnMoved;

  constructor(places: Places, answers: readonly Said[], onMoved: OnMoved) {
    this.#places = places;
    this.#lists = [places.owners, ...places.others];
    this.#answers = answers;
    this.#onMoved = onMoved;
  }

  /** True where all blocks are offered alike: by one vault, none of them from an archive. */
  get isPlain(): boolean {
    const { owners, others } = this.#places;
    return owners.length === 0 && others.length === 0 && !this.#answers[0]?.archived;
  }

  at(index: number): Chosen {
    const owner = this.#places.owners[index] ?? 0;
    const [vault, second] =
      this.#places.others.length === 0 ? [owner, null] : this.#ofSeveral(owner, index);
    const archived = this.#archived(vault, index);
    const source = archived === 0 ? null : (this.#answers[vault]?.archived?.source ?? null);
    return { vault, second, archived, source };
  }

  #ofSeveral(owner: number, index: number): [vault: number, second: number | null] {
    const on = this.#lists.flatMap((list) => (list[index] === NO_VAULT ? [] : (list[index] ?? [])));
    const isSaid = (vault: number): boolean => this.#isSaid(vault, index);
    const isNear = (vault: number): boolean => isSaid(vault) && this.#archived(vault, index) === 0;
    const vault = on.find(isNear) ?? on.find(isSaid) ?? owner;
    const { before = [] } = this.#places;
    if (isSaid(vault) && before.some((list) => list[index] === vault)) this.#onMoved(vault);
    // A block at a former owner will move to the present one.
    if (vault !== owner) return [vault, owner];
    const rest = on.filter((one) => one !== vault);
    return [vault, rest.find(isSaid) ?? rest[0] ?? null];
  }

  #isSaid(vault: number, index: number): boolean {
    const said = this.#answers[vault]?.said;
    return said !== undefined && hasBit(said, index);
  }

  #archived(vault: number, index: number): number {
    return this.#answers[vault]?.archived?.counts[index] ?? 0;
  }
}
