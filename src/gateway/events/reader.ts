// Owns reading MessagePack for long batches of events: lists of hashes and tokens in one pass, without an object for each step.
import { decode } from "@msgpack/msgpack";

/** Bytes after each type byte from 0xc0 on; negative: so many bytes hold the length, or a container's count. */
const FIXED: readonly number[] = [
  0, 0, 0, 0, -1, -2, -4, -1, -2, -4, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, -1, -2, -4, -2,
  -4, -2, -4,
];
const [EXT8, EXT32] = [0xc7, 0xc9];
const ARRAY16 = 0xdc;

/** Reads values from first to last; throws for bytes that are cut off or of another type. */
export class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  /** Place of the next value, in bytes. */
  at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Reads an array's head and returns its count of values; null: the next value is no array, and nothing was read. */
  array(): number | null {
    return this.#container(0x90, ARRAY16);
  }

  /** Reads a map's head and returns its count of pairs; null as for `array`. */
  map(): number | null {
    return this.#container(0x80, 0xde);
  }

  /** Reads the next value whole; meant for texts and small values. */
  value(): unknown {
    const from = this.at;
    this.skip();
    return decode(this.#bytes.subarray(from, this.at), { useBigInt64: true });
  }

  /** Reads a list of integers, one for each token. */
  numbers(): number[] {
    const count = this.#listed();
    const found: number[] = [];
    for (let n = 0; n < count; n += 1) found.push(this.#number());
    return found;
  }

  /** Reads a list of hashes: integers are the low 64 bits already, byte strings hold them last. */
  hashes(): bigint[] {
    const count = this.#listed();
    const found: bigint[] = [];
    for (let n = 0; n < count; n += 1) found.push(this.#hash());
    return found;
  }

  /** Skips one value, however deeply nested. */
  skip(): void {
    for (let left = 1; left > 0; left -= 1) {
      const type = this.#view.getUint8(this.at);
      this.at += 1;
      if (type >= 0xa0 && type < 0xc0) this.at += type & 0x1f;
      else if (type >= 0x90 && type < 0xa0) left += type & 0x0f;
      else if (type >= 0x80 && type < 0x90) left += 2 * (type & 0x0f);
      else if (type >= 0xc0 && type < 0xe0) left += this.#skipLong(type);
    }
    if (this.at > this.#bytes.length) throw new RangeError("it ends in the middle of a value");
  }

  /** Returns how many more values belong to the skipped one. */
  #skipLong(type: number): number {
    const fixed = FIXED[type - 0xc0] ?? 0;
    const bytes = fixed < 0 ? this.#length(-fixed) : fixed;
    if (type >= ARRAY16) return type >= 0xde ? 2 * bytes : bytes;
    this.at += bytes + (type >= EXT8 && type <= EXT32 ? 1 : 0);
    return 0;
  }

  #length(bytes: number): number {
    const at = this.at;
    this.at += bytes;
    if (bytes === 1) return this.#view.getUint8(at);
    return bytes === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #container(short: number, long: number): number | null {
    const type = this.#view.getUint8(this.at);
    if ((type & 0xf0) === short) {
      this.at += 1;
      return type & 0x0f;
    }
    if (type !== long && type !== long + 1) return null;
    this.at += 1;
    return this.#length(type === long ? 2 : 4);
  }

  /** Bounds the count by the bytes left, so that a false length allocates nothing. */
  #listed(): number {
    const count = this.array();
    if (count === null) throw new TypeError("a list is missing");
    if (count > this.#bytes.length - this.at) throw new RangeError("a list is cut off");
    return count;
  }

  #number(): number {
    const view = this.#view;
    const type = view.getUint8(this.at);
    this.at += 1;
    if (type < 0x80) return type;
    const at = this.at;
    if (type === 0xcd) {
      this.at += 2;
      return view.getUint16(at);
    }
    if (type === 0xce) {
      this.at += 4;
      return view.getUint32(at);
    }
    this.at -= 1;
    const value = this.value();
    if (typeof value !== "number" && typeof value !== "bigint") {
      throw new TypeError("a token is no number");
    }
    return Number(value);
  }

  #hash(): bigint {
    if (this.#view.getUint8(this.at) === 0xcf) {
      this.at += 9;
      return this.#view.getBigUint64(this.at - 8);
    }
    return hashOf(this.value());
  }
}

/** Returns the low 64 bits of a hash, as an engine names a block. */
export function hashOf(value: unknown): bigint {
  if (typeof value === "bigint") return BigInt.asUintN(64, value);
  if (typeof value === "number") return BigInt.asUintN(64, BigInt(value));
  if (value instanceof Uint8Array && value.length >= 8) {
    return Buffer.from(value).readBigUInt64BE(value.length - 8);
  }
  throw new Error("a hash is neither a number nor bytes");
}
