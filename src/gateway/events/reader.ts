// Owns reading MessagePack where batches of events are long: lists of hashes and tokens, in one pass, without a value for each step.
import { decode } from "@msgpack/msgpack";

/** Lengths of what follows a type byte from 0xc0 on; below 0: in the bytes behind it, or a container. */
const FIXED: readonly number[] = [
  0, 0, 0, 0, -1, -2, -4, -1, -2, -4, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17, -1, -2, -4, -2,
  -4, -2, -4,
];
const [EXT8, EXT32] = [0xc7, 0xc9];
const ARRAY16 = 0xdc;

/** From the first byte to the last; throws for what is cut off or is something else. */
export class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** How many values follow that belong to it; null: no array, and nothing was read. */
  array(): number | null {
    return this.#container(0x90, ARRAY16);
  }

  /** How many pairs of values. */
  map(): number | null {
    return this.#container(0x80, 0xde);
  }

  /** Anything else, as it is; texts and small things. */
  value(): unknown {
    const from = this.#at;
    this.skip();
    return decode(this.#bytes.subarray(from, this.#at), { useBigInt64: true });
  }

  /** Whole numbers, one for each token. */
  numbers(): number[] {
    const count = this.#listed();
    const found: number[] = [];
    for (let n = 0; n < count; n += 1) found.push(this.#number());
    return found;
  }

  /** Integers are the low 64 bits already; of bytes they are the last eight. */
  hashes(): bigint[] {
    const count = this.#listed();
    const found: bigint[] = [];
    for (let n = 0; n < count; n += 1) found.push(this.#hash());
    return found;
  }

  /** One value, however deep. */
  skip(): void {
    for (let left = 1; left > 0; left -= 1) {
      const type = this.#view.getUint8(this.#at);
      this.#at += 1;
      if (type >= 0xa0 && type < 0xc0) this.#at += type & 0x1f;
      else if (type >= 0x90 && type < 0xa0) left += type & 0x0f;
      else if (type >= 0x80 && type < 0x90) left += 2 * (type & 0x0f);
      else if (type >= 0xc0 && type < 0xe0) left += this.#skipLong(type);
    }
    if (this.#at > this.#bytes.length) throw new RangeError("it ends in the middle of a value");
  }

  /** How many values belong to it besides. */
  #skipLong(type: number): number {
    const fixed = FIXED[type - 0xc0] ?? 0;
    const bytes = fixed < 0 ? this.#length(-fixed) : fixed;
    if (type >= ARRAY16) return type >= 0xde ? 2 * bytes : bytes;
    this.#at += bytes + (type >= EXT8 && type <= EXT32 ? 1 : 0);
    return 0;
  }

  #length(bytes: number): number {
    const at = this.#at;
    this.#at += bytes;
    if (bytes === 1) return this.#view.getUint8(at);
    return bytes === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #container(short: number, long: number): number | null {
    const type = this.#view.getUint8(this.#at);
    if ((type & 0xf0) === short) {
      this.#at += 1;
      return type & 0x0f;
    }
    if (type !== long && type !== long + 1) return null;
    this.#at += 1;
    return this.#length(type === long ? 2 : 4);
  }

  /** No more than there are bytes: a length alone allocates nothing. */
  #listed(): number {
    const count = this.array();
    if (count === null) throw new TypeError("a list is missing");
    if (count > this.#bytes.length - this.#at) throw new RangeError("a list is cut off");
    return count;
  }

  #number(): number {
    const view = this.#view;
    const type = view.getUint8(this.#at);
    this.#at += 1;
    if (type < 0x80) return type;
    const at = this.#at;
    if (type === 0xcd) {
      this.#at += 2;
      return view.getUint16(at);
    }
    if (type === 0xce) {
      this.#at += 4;
      return view.getUint32(at);
    }
    this.#at -= 1;
    const value = this.value();
    if (typeof value !== "number" && typeof value !== "bigint") {
      throw new TypeError("a token is no number");
    }
    return Number(value);
  }

  #hash(): bigint {
    if (this.#view.getUint8(this.#at) === 0xcf) {
      this.#at += 9;
      return this.#view.getBigUint64(this.#at - 8);
    }
    return hashOf(this.value());
  }
}

/** As an engine names a block. */
export function hashOf(value: unknown): bigint {
  if (typeof value === "bigint") return BigInt.asUintN(64, value);
  if (typeof value === "number") return BigInt.asUintN(64, BigInt(value));
  if (value instanceof Uint8Array && value.length >= 8) {
    return Buffer.from(value).readBigUInt64BE(value.length - 8);
  }
  throw new Error("a hash is neither a number nor bytes");
}
