// Owns the index's hash tables in typed arrays, because JavaScript maps take four times the time and the memory.
import type { BlockName } from "./chain.ts";

const SLOTS_MIN = 1024;
const EMPTY = -1;
const GOLDEN = 0x9e37_79b1;

/** Engines by block, one bit each. A name's low bits are spread already; 0 is no name. */
export class BitTable {
  #names = new Float64Array(SLOTS_MIN);
  #bits = new Uint32Array(SLOTS_MIN);
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** Returns 0 for an unknown name. */
  get(name: BlockName): number {
    return this.#bits[this.#find(name)] ?? 0;
  }

  /** Bits of 0 remove the name. */
  set(name: BlockName, bits: number): void {
    let at = this.#find(name);
    if (bits === 0) {
      if (this.#names[at] === name) this.#delete(at);
      return;
    }
    if (this.#names[at] !== name) {
      if (this.#size >= this.#names.length >> 1) {
        this.#grow();
        at = this.#find(name);
      }
      this.#names[at] = name;
      this.#size += 1;
    }
    this.#bits[at] = bits;
  }

  /** Returns the slot of a name, or the free one for it. */
  #find(name: BlockName): number {
    const names = this.#names;
    const mask = names.length - 1;
    let at = name & mask;
    while (names[at] !== 0 && names[at] !== name) at = (at + 1) & mask;
    return at;
  }

  /** Moves later entries up, because a gap would hide them. */
  #delete(gone: number): void {
    const names = this.#names;
    const bits = this.#bits;
    const mask = names.length - 1;
    let gap = gone;
    for (let at = (gap + 1) & mask; names[at] !== 0; at = (at + 1) & mask) {
      const home = (names[at] ?? 0) & mask;
      if (((at - home) & mask) < ((at - gap) & mask)) continue;
      names[gap] = names[at] ?? 0;
      bits[gap] = bits[at] ?? 0;
      gap = at;
    }
    names[gap] = 0;
    bits[gap] = 0;
    this.#size -= 1;
  }

  #grow(): void {
    const [names, bits] = [this.#names, this.#bits];
    this.#names = new Float64Array(2 * names.length);
    this.#bits = new Uint32Array(2 * names.length);
    for (const [at, name] of names.entries()) {
      if (name === 0) continue;
      const to = this.#find(name);
      this.#names[to] = name;
      this.#bits[to] = bits[at] ?? 0;
    }
  }
}

/** Maps an engine's block names (64 bits) to ours, in the order of their arrival; 0 is no name. */
export class NameTable {
  /** Low and high half of each entry's hash; a removed entry has the name 0. */
  #halves = new Uint32Array(SLOTS_MIN);
  #names = new Float64Array(SLOTS_MIN >> 1);
  /** Entries by hash. */
  #slots = new Int32Array(SLOTS_MIN).fill(EMPTY);
  /** Index after the last entry; index before which no entry is left. */
  #end = 0;
  #first = 0;
  #size = 0;
  readonly #hash = new BigUint64Array(1);
  readonly #half = new Uint32Array(this.#hash.buffer);

  get size(): number {
    return this.#size;
  }

  /** Returns 0 for an unknown hash. */
  get(hash: bigint): BlockName {
    const entry = this.#slots[this.#find(hash)] ?? EMPTY;
    return entry === EMPTY ? 0 : (this.#names[entry] ?? 0);
  }

  set(hash: bigint, name: BlockName): void {
    let at = this.#find(hash);
    const known = this.#slots[at] ?? EMPTY;
    if (known !== EMPTY) {
      this.#names[known] = name;
      return;
    }
    if (this.#end === this.#names.length) {
      this.#renew();
      at = this.#find(hash);
    }
    this.#halves[2 * this.#end] = this.#half[0] ?? 0;
    this.#halves[2 * this.#end + 1] = this.#half[1] ?? 0;
    this.#names[this.#end] = name;
    this.#slots[at] = this.#end;
    this.#end += 1;
    this.#size += 1;
  }

  /** Removes a hash and returns its name; 0: it was not there. */
  delete(hash: bigint): BlockName {
    const at = this.#find(hash);
    const entry = this.#slots[at] ?? EMPTY;
    if (entry === EMPTY) return 0;
    const name = this.#names[entry] ?? 0;
    this.#names[entry] = 0;
    this.#size -= 1;
    this.#close(at);
    return name;
  }

  /** Removes the oldest entry and returns its name; 0: there is none. */
  shift(): BlockName {
    while (this.#first < this.#end && this.#names[this.#first] === 0) this.#first += 1;
    return this.#first === this.#end ? 0 : this.delete(this.#hashAt(this.#first));
  }

  clear(): void {
    this.#halves = new Uint32Array(SLOTS_MIN);
    this.#names = new Float64Array(SLOTS_MIN >> 1);
    this.#slots = new Int32Array(SLOTS_MIN).fill(EMPTY);
    [this.#end, this.#first, this.#size] = [0, 0, 0];
  }

  /** Yields a snapshot of the entries, oldest first. */
  *entries(): Generator<[bigint, BlockName]> {
    const names = this.#names.slice(0, this.#end);
    const hashes = new BigUint64Array(this.#halves.buffer.slice(0, 8 * this.#end));
    for (const [at, name] of names.entries()) if (name !== 0) yield [hashes[at] ?? 0n, name];
  }

  /** Returns the slot of a hash, or the free one for it; leaves its halves in `#half`. */
  #find(hash: bigint): number {
    this.#hash[0] = hash;
    const slots = this.#slots;
    const halves = this.#halves;
    const low = this.#half[0] ?? 0;
    const high = this.#half[1] ?? 0;
    const mask = slots.length - 1;
    let at = homeOf(low, high, mask);
    for (let entry = slots[at] ?? EMPTY; entry !== EMPTY; entry = slots[at] ?? EMPTY) {
      if (halves[2 * entry] === low && halves[2 * entry + 1] === high) return at;
      at = (at + 1) & mask;
    }
    return at;
  }

  #hashAt(entry: number): bigint {
    this.#half[0] = this.#halves[2 * entry] ?? 0;
    this.#half[1] = this.#halves[2 * entry + 1] ?? 0;
    return this.#hash[0] ?? 0n;
  }

  /** Moves later entries into the gap. */
  #close(gone: number): void {
    const slots = this.#slots;
    const halves = this.#halves;
    const mask = slots.length - 1;
    let gap = gone;
    let at = (gap + 1) & mask;
    for (let entry = slots[at] ?? EMPTY; entry !== EMPTY; entry = slots[at] ?? EMPTY) {
      const home = homeOf(halves[2 * entry] ?? 0, halves[2 * entry + 1] ?? 0, mask);
      if (((at - home) & mask) >= ((at - gap) & mask)) {
        slots[gap] = entry;
        gap = at;
      }
      at = (at + 1) & mask;
    }
    slots[gap] = EMPTY;
  }

  /** Rebuilds without removed entries, with room for half as many again. */
  #renew(): void {
    const [names, halves] = [this.#names, this.#halves];
    const length = Math.max(SLOTS_MIN >> 1, Math.ceil(1.5 * this.#size));
    const [first, end] = [this.#first, this.#end];
    const [low, high] = this.#half;
    this.#halves = new Uint32Array(2 * length);
    this.#names = new Float64Array(length);
    this.#slots = new Int32Array(slotsFor(length)).fill(EMPTY);
    [this.#end, this.#first] = [0, 0];
    for (let entry = first; entry < end; entry += 1) {
      const name = names[entry] ?? 0;
      if (name === 0) continue;
      this.#half.set(halves.subarray(2 * entry, 2 * entry + 2));
      this.#halves.set(this.#half, 2 * this.#end);
      this.#names[this.#end] = name;
      this.#slots[this.#find(this.#hash[0] ?? 0n)] = this.#end;
      this.#end += 1;
    }
    this.#half[0] = low ?? 0;
    this.#half[1] = high ?? 0;
  }
}

/** At most three of four slots are taken. */
const slotsFor = (entries: number): number => 2 ** Math.ceil(Math.log2((entries * 4) / 3));

function homeOf(low: number, high: number, mask: number): number {
  const mixed = Math.imul(low ^ Math.imul(high, GOLDEN), GOLDEN);
  return (mixed ^ (mixed >>> 15)) & mask;
}
