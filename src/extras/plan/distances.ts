// Owns LRU stack distances: tokens of other blocks used since a block's last use, in one pass over a trace.

const START_POSITIONS = 1024;

/** A block hits in an LRU memory exactly when its distance is at most the memory's tokens. */
export class Distances {
  readonly #positions = new Map<number, number>();
  /** Tokens at each position, least recently used first; 0 where the block was used again since. */
  #tokens = new Float64Array(START_POSITIONS);
  /** Sums of `#tokens` as a Fenwick tree, from 1. */
  #sums = new Float64Array(START_POSITIONS + 1);
  #next = 0;
  #total = 0;

  get blocks(): number {
    return this.#positions.size;
  }

  /** Tokens of all blocks used so far. */
  get tokens(): number {
    return this.#total;
  }

  /** Tokens used since the block's last use, its own among them; Infinity: it was never used. */
  of(id: number): number {
    const position = this.#positions.get(id);
    return position === undefined ? Infinity : this.#total - this.#before(position);
  }

  use(id: number, tokens: number): void {
    const last = this.#positions.get(id);
    if (last !== undefined) this.#put(last, 0);
    if (this.#next === this.#tokens.length) this.#compact();
    // Moved to the end, because compacting needs the Map in order of use.
    this.#positions.delete(id);
    this.#positions.set(id, this.#next);
    this.#put(this.#next, tokens);
    this.#next += 1;
  }

  #put(position: number, tokens: number): void {
    const change = tokens - (this.#tokens[position] ?? 0);
    this.#tokens[position] = tokens;
    this.#total += change;
    for (let at = position + 1; at < this.#sums.length; at += at & -at) {
      this.#sums[at] = (this.#sums[at] ?? 0) + change;
    }
  }

  #before(position: number): number {
    let sum = 0;
    for (let at = position; at > 0; at -= at & -at) sum += this.#sums[at] ?? 0;
    return sum;
  }

  /** Removes positions without a block, and makes room for as many again as there are blocks. */
  #compact(): void {
    const old = this.#tokens;
    const room = Math.max(START_POSITIONS, 2 * this.#positions.size);
    this.#tokens = new Float64Array(room);
    this.#sums = new Float64Array(room + 1);
    [this.#next, this.#total] = [0, 0];
    for (const [id, position] of this.#positions) {
      this.#positions.set(id, this.#next);
      this.#put(this.#next, old[position] ?? 0);
      this.#next += 1;
    }
  }
}
