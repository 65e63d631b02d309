// Owns the bytes that vLLM hashes for a block: canonical CBOR, and pickle protocol 5 as Python's own pickler writes it.
import { HASH_BYTES } from "../../block.ts";

/** Inputs of a block's hash besides its tokens: texts, or tuples of them. */
export type ExtraKeys = readonly (string | readonly string[])[];

/** Writes into memory that is used again, because a prompt has thousands of blocks. */
class Writer {
  #bytes: Buffer = Buffer.allocUnsafe(1024);
  #at = 0;

  begin(): void {
    this.#at = 0;
  }

  /** Returns a view, valid until the next `begin`. */
  end(from = 0): Buffer {
    return this.#bytes.subarray(from, this.#at);
  }

  get length(): number {
    return this.#at;
  }

  byte(value: number): void {
    this.#room(1);
    this.#bytes[this.#at] = value;
    this.#at += 1;
  }

  /** Most significant byte first. */
  big(value: number, bytes: number): void {
    this.#room(bytes);
    this.#at = this.#bytes.writeUIntBE(value, this.#at, bytes);
  }

  little(value: number, bytes: number): void {
    this.#room(bytes);
    this.#at = this.#bytes.writeUIntLE(value, this.#at, bytes);
  }

  all(bytes: Uint8Array): void {
    this.#room(bytes.length);
    this.#bytes.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  #room(bytes: number): void {
    if (this.#at + bytes <= this.#bytes.length) return;
    const grown = Buffer.allocUnsafe(2 * (this.#at + bytes));
    this.#bytes.copy(grown, 0, 0, this.#at);
    this.#bytes = grown;
  }
}

const out = new Writer();

/** Encodes the tokens from..to, integers below 2^31. Returns a view, valid until the next call. */
export type EncodeBlock = (
  parent: Uint8Array,
  tokens: readonly number[],
  from: number,
  to: number,
  extra: ExtraKeys | null,
) => Buffer;

export type EncodeText = (text: string) => Buffer;

// RFC 8949: a major type, and its length or value in as few bytes as hold it.

const [UNSIGNED, BYTES, TEXT, ARRAY] = [0x00, 0x40, 0x60, 0x80];
const CBOR_NULL = 0xf6;

function cborHead(major: number, value: number): void {
  if (value < 24) return out.byte(major | value);
  const size = value < 0x100 ? 0 : value < 0x1_0000 ? 1 : 2;
  out.byte(major | (24 + size));
  out.big(value, 2 ** size);
}

function cborText(text: string): void {
  const bytes = Buffer.from(text);
  cborHead(TEXT, bytes.length);
  out.all(bytes);
}

export const cborOfBlock: EncodeBlock = (parent, tokens, from, to, extra) => {
  out.begin();
  cborHead(ARRAY, 3);
  cborHead(BYTES, HASH_BYTES);
  out.all(parent);
  cborHead(ARRAY, to - from);
  for (let at = from; at < to; at += 1) cborHead(UNSIGNED, tokens[at] ?? 0);
  if (extra === null) out.byte(CBOR_NULL);
  else {
    cborHead(ARRAY, extra.length);
    for (const key of extra) {
      if (typeof key === "string") cborText(key);
      else {
        cborHead(ARRAY, key.length);
        for (const text of key) cborText(text);
      }
    }
  }
  return out.end();
};

export const cborOfText: EncodeText = (text) => {
  out.begin();
  cborText(text);
  return out.end();
};

// Opcodes as in Python's Lib/pickletools.py. Each bytes, text and tuple is memoized as Python does, though none repeats.

const [MEMOIZE, STOP, NONE, MARK, TUPLE] = [0x94, 0x2e, 0x4e, 0x28, 0x74];
/** Tuples of 0 to 3 members, which need no mark. */
const SHORT_TUPLES = [0x29, 0x85, 0x86, 0x87] as const;
const [SHORT_BYTES, SHORT_TEXT, LONG_TEXT] = [0x43, 0x8c, 0x58];
const [BYTE_INT, SHORT_INT, INT] = [0x4b, 0x4d, 0x4a];
/** Protocol 5, then one frame around the rest, whose length follows. */
const HEAD: Buffer = Buffer.from([0x80, 0x05, 0x95]);
const LENGTH_BYTES = 8;

function pickleInt(value: number): void {
  if (value < 0x100) {
    out.byte(BYTE_INT);
    out.byte(value);
  } else {
    const isShort = value < 0x1_0000;
    out.byte(isShort ? SHORT_INT : INT);
    out.little(value, isShort ? 2 : 4);
  }
}

function pickleText(text: string): void {
  const bytes = Buffer.from(text);
  const isShort = bytes.length < 0x100;
  out.byte(isShort ? SHORT_TEXT : LONG_TEXT);
  out.little(bytes.length, isShort ? 1 : 4);
  out.all(bytes);
  out.byte(MEMOIZE);
}

function pickleTuple(length: number, members: () => void): void {
  const short = SHORT_TUPLES[length];
  if (short === undefined) out.byte(MARK);
  members();
  out.byte(short ?? TUPLE);
  if (length > 0) out.byte(MEMOIZE);
}

function pickled(write: () => void): Buffer {
  out.begin();
  out.all(HEAD);
  out.little(0, 4);
  out.little(0, 4);
  const from = out.length;
  write();
  out.byte(STOP);
  const all = out.end();
  all.writeUInt32LE(out.length - from, from - LENGTH_BYTES);
  return all;
}

export const pickleOfBlock: EncodeBlock = (parent, tokens, from, to, extra) =>
  pickled(() =>
    pickleTuple(3, () => {
      out.byte(SHORT_BYTES);
      out.byte(HASH_BYTES);
      out.all(parent);
      out.byte(MEMOIZE);
      pickleTuple(to - from, () => {
        for (let at = from; at < to; at += 1) pickleInt(tokens[at] ?? 0);
      });
      if (extra === null) out.byte(NONE);
      else {
        pickleTuple(extra.length, () => {
          for (const key of extra) {
            if (typeof key === "string") pickleText(key);
            else
              pickleTuple(key.length, () => {
                for (const text of key) pickleText(text);
              });
          }
        });
      }
    }),
  );

export const pickleOfText: EncodeText = (text) => pickled(() => pickleText(text));
