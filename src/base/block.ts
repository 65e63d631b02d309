// Owns the domain words and their packing: record classes, item statuses, namespaces, packed keys and bitmaps.
import { TierkvError } from "./errors.ts";
import { randomToken } from "./time.ts";

export const HASH_BYTES = 32;
export const NAMESPACE_BYTES = 32;
/** block hash (32) | group uint16 | shard uint16, little-endian. */
export const PACKED_KEY_BYTES = 36;

/** A record's class: attention KV, or recurrent (SSM, linear-attention) state. */
export type RecordClass = "kv" | "ssm";
export type RecordClassNumber = 1 | 2;
export const RECORD_CLASSES: readonly RecordClass[] = ["kv", "ssm"];

export function classNumber(recordClass: RecordClass): RecordClassNumber {
  return recordClass === "kv" ? 1 : 2;
}

/** Throws BAD_ARGUMENT for a number that names no class. */
export function className(number: number): RecordClass {
  if (number === 1) return "kv";
  if (number === 2) return "ssm";
  throw new TierkvError("BAD_ARGUMENT", {
    reason: `record class ${number}: expected 1 (kv) or 2 (ssm)`,
  });
}

/** Records that a vault holds: one class, or both. */
export type VaultClass = RecordClass | "both";

export function isVaultClass(given: unknown): given is VaultClass {
  return given === "kv" || given === "ssm" || given === "both";
}

/** The classes of records that such a vault holds. */
export function classesOf(vaultClass: VaultClass): readonly RecordClass[] {
  return vaultClass === "both" ? RECORD_CLASSES : [vaultClass];
}

/** Number on the wire and in the native store; 0 stands for both. */
export function vaultClassNumber(vaultClass: VaultClass): RecordClassNumber | 0 {
  return vaultClass === "both" ? 0 : classNumber(vaultClass);
}

/** Throws BAD_ARGUMENT for a number that names no class. */
export function vaultClassName(number: number): VaultClass {
  return number === 0 ? "both" : className(number);
}

/** Outcome of one item; the numbers are those of proto/tierkv.proto. */
export const ItemStatus = {
  UNSPECIFIED: 0,
  ACCEPTED: 1,
  PRESENT: 2,
  MISSING: 3,
  BAD_RECORD: 4,
  WRONG_CLASS: 5,
  WRONG_KEY: 6,
  TOO_LARGE: 7,
  OVER_BUDGET: 8,
  INCOMPLETE: 9,
  QUARANTINED: 10,
  DURABLE: 11,
  FLUSHED: 12,
  DRAINING: 13,
} as const;
export type ItemStatus = (typeof ItemStatus)[keyof typeof ItemStatus];
export type ItemStatusName = keyof typeof ItemStatus;

const STATUS_NAMES = Object.keys(ItemStatus) as ItemStatusName[];

/** Returns the lower-case name for counters and texts: `bad_record`. Numbers of a newer release read as `unknown`. */
export function statusName(status: number): string {
  return STATUS_NAMES[status]?.toLowerCase() ?? "unknown";
}

/** Digest of everything that makes records comparable, 32 bytes; checked once, at the border. */
export type Namespace = Buffer & { readonly brand: "namespace" };

export function toNamespace(bytes: Uint8Array): Namespace {
  if (bytes.length !== NAMESPACE_BYTES) {
    throw new TierkvError("BAD_ARGUMENT", {
      reason: `namespace has ${bytes.length} bytes: expected ${NAMESPACE_BYTES}`,
    });
  }
  return asBuffer(bytes) as Namespace;
}

/** The same memory as a Buffer, without a copy. */
export function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Packs hashes of 32 bytes each into keys of one group and shard. Throws BAD_ARGUMENT for a partial hash. */
export function packKeys(hashes: Uint8Array, group: number, shard: number): Buffer {
  const count = hashes.length / HASH_BYTES;
  if (!Number.isInteger(count)) {
    throw new TierkvError("BAD_ARGUMENT", {
      reason: `${hashes.length} bytes of hashes: expected a multiple of ${HASH_BYTES}`,
    });
  }
  const keys = Buffer.allocUnsafe(count * PACKED_KEY_BYTES);
  for (let index = 0; index < count; index += 1) {
    const at = index * PACKED_KEY_BYTES;
    keys.set(hashes.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES), at);
    keys.writeUInt16LE(group, at + HASH_BYTES);
    keys.writeUInt16LE(shard, at + HASH_BYTES + 2);
  }
  return keys;
}

const WORD_BYTES = 4;
const HASH_WORDS = HASH_BYTES / WORD_BYTES;
const KEY_WORDS = PACKED_KEY_BYTES / WORD_BYTES;

/** Keys of many blocks, written word by word, because byte by byte takes three times as long. */
export class KeyPacker {
  readonly #words: Uint32Array<ArrayBuffer>;
  #at = 0;
  /** Cached view of the last hashes, because making a view takes as long as a key. */
  #hashes: Uint8Array | null = null;
  #from: Uint32Array = new Uint32Array(0);

  constructor(count: number) {
    this.#words = new Uint32Array(count * KEY_WORDS);
  }

  get keys(): Buffer {
    return Buffer.from(this.#words.buffer);
  }

  /** Appends the keys of all shards of the hash at `index`. */
  add(hashes: Uint8Array, index: number, group: number, shards: number): void {
    if (hashes !== this.#hashes) {
      this.#hashes = hashes;
      this.#from = wordsOf(hashes);
    }
    const [from, to] = [this.#from, this.#words];
    let at = this.#at;
    const first = index * HASH_WORDS;
    for (let shard = 0; shard < shards; shard += 1) {
      for (let word = 0; word < HASH_WORDS; word += 1) to[at + word] = from[first + word] ?? 0;
      to[at + HASH_WORDS] = group | (shard << 16);
      at += KEY_WORDS;
    }
    this.#at = at;
  }
}

function wordsOf(bytes: Uint8Array): Uint32Array {
  const whole = bytes.byteOffset % WORD_BYTES === 0 ? bytes : new Uint8Array(bytes);
  return new Uint32Array(whole.buffer, whole.byteOffset, whole.byteLength / WORD_BYTES);
}

/** A view of the hash at `index`. */
export function hashAt({ hashes }: { hashes: Buffer }, index: number): Buffer {
  return hashes.subarray(index * HASH_BYTES, (index + 1) * HASH_BYTES);
}

/** Returns the number of keys in a packed buffer. Throws BAD_ARGUMENT for a partial key. */
export function keyCount(keys: Uint8Array): number {
  const count = keys.length / PACKED_KEY_BYTES;
  if (!Number.isInteger(count)) {
    throw new TierkvError("BAD_ARGUMENT", {
      reason: `${keys.length} bytes of keys: expected a multiple of ${PACKED_KEY_BYTES}`,
    });
  }
  return count;
}

/** The packed key at `index`: a view, not a copy. */
export function keyAt(keys: Buffer, index: number): Buffer {
  return keys.subarray(index * PACKED_KEY_BYTES, (index + 1) * PACKED_KEY_BYTES);
}

// Bitmaps: bit i is bit (i % 8), least significant first, of byte (i / 8).

export function newBitmap(count: number): Buffer {
  return Buffer.alloc(Math.ceil(count / 8));
}

export function setBit(bitmap: Uint8Array, index: number): void {
  const byte = index >>> 3;
  bitmap[byte] = (bitmap[byte] ?? 0) | (1 << (index & 7));
}

/** False past the end, because a short bitmap promises nothing. */
export function hasBit(bitmap: Uint8Array, index: number): boolean {
  return (((bitmap[index >>> 3] ?? 0) >>> (index & 7)) & 1) === 1;
}

/** Number of bits set in each byte. */
const BITS_IN = Uint8Array.from({ length: 256 }, (_, byte) => countIn(byte));

function countIn(byte: number): number {
  let [left, bits] = [byte, 0];
  for (; left > 0; left >>>= 1) bits += left & 1;
  return bits;
}

/** Returns the number of bits set among the first `count`. */
export function countBits(bitmap: Uint8Array, count: number): number {
  const whole = Math.min(count >>> 3, bitmap.length);
  let total = 0;
  for (let at = 0; at < whole; at += 1) total += BITS_IN[bitmap[at] ?? 0] ?? 0;
  for (let index = whole * 8; index < count; index += 1) if (hasBit(bitmap, index)) total += 1;
  return total;
}

/** Returns the end of the run of set bits that begins at `first`, at most `count`; `first` where its bit is not set. */
export function runEnd(bitmap: Uint8Array, first: number, count: number): number {
  let end = first;
  while (end < count && hasBit(bitmap, end)) {
    const isWhole = (end & 7) === 0 && end + 8 <= count && bitmap[end >>> 3] === 0xff;
    end += isWhole ? 8 : 1;
  }
  return end;
}

/** Returns the length of the leading run of set bits within the first `count`: a prefix without a gap. */
export function leadingBits(bitmap: Uint8Array, count: number): number {
  return runEnd(bitmap, 0, count);
}

/** Prefix of the namespaces of measuring commands; engines' namespaces are digests. */
const MEASURING = Buffer.from("tierkv measuring", "latin1");

/** Returns a new namespace for records that are dropped after a measurement. */
export function measuringNamespace(): Namespace {
  return toNamespace(Buffer.concat([MEASURING, randomToken(NAMESPACE_BYTES - MEASURING.length)]));
}

export function isMeasuring(namespace: Namespace): boolean {
  return namespace.subarray(0, MEASURING.length).equals(MEASURING);
}
