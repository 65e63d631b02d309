// Owns which blocks engines hold as a lossy codec gave them back: saved again, they must not be coded again.
import { DECODED_BLOCKS_MAX } from "../../base/limits/codec.ts";

/** Names of the blocks placed last, by their keys' text; the oldest is forgotten. */
export class DecodedBlocks {
  readonly #max: number;
  readonly #keys = new Set<string>();

  constructor(max: number = DECODED_BLOCKS_MAX) {
    this.#max = max;
  }

  note(key: string): void {
    this.#keys.delete(key);
    this.#keys.add(key);
    const [oldest] = this.#keys;
    if (this.#keys.size > this.#max && oldest !== undefined) this.#keys.delete(oldest);
  }

  has(key: string): boolean {
    return this.#keys.has(key);
  }
}
