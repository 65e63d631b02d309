// Owns the checked reading of untyped fields: each getter returns its type or throws BAD_FRAME with field, value and expectation.
import { TierkvError } from "../../base/errors.ts";
import { FRAME_TEXT_BYTES_MAX, NAME_BYTES_MAX } from "../../base/limits/general.ts";
import type { Fields } from "./frames.ts";

const U32_MAX = 0xffff_ffff;
const SHOWN_MAX = 60;

/** Reads one map or one array; `path` names it in errors. */
export class Reader {
  readonly #fields: Fields | readonly unknown[];
  readonly #path: string;
  readonly #peer: string;

  constructor(fields: Fields | readonly unknown[], path: string, peer: string) {
    this.#fields = fields;
    this.#path = path;
    this.#peer = peer;
  }

  u32(key: string | number, min = 0, max: number = U32_MAX): number {
    const value = this.#get(key);
    if (typeof value === "number" && Number.isInteger(value) && value >= min && value <= max) {
      return value;
    }
    throw this.wrong(key, `an integer from ${min} to ${max}`);
  }

  /** Reads a count or a size: an exact integer, not negative. */
  count(key: string | number): number {
    return this.u32(key, 0, Number.MAX_SAFE_INTEGER);
  }

  text(key: string | number, bytesMax: number = FRAME_TEXT_BYTES_MAX): string {
    const value = this.#get(key);
    if (typeof value === "string" && Buffer.byteLength(value) <= bytesMax) return value;
    throw this.wrong(key, `a text of at most ${bytesMax} bytes`);
  }

  /** Reads a text that is kept and shown: short and not empty. */
  name(key: string | number): string {
    const value = this.text(key, NAME_BYTES_MAX);
    if (value !== "") return value;
    throw this.wrong(key, "a text that is not empty");
  }

  /** Returns a text, or empty when there is none: for peers of an unknown version. */
  anyText(key: string | number): string {
    const value = this.#get(key);
    return typeof value === "string" ? value.slice(0, NAME_BYTES_MAX) : "";
  }

  oneOf<T extends string>(key: string | number, names: readonly T[]): T {
    const value = this.#get(key);
    const found = names.find((name) => name === value);
    if (found !== undefined) return found;
    throw this.wrong(key, names.join(" or "));
  }

  bytes(key: string | number, min: number, max: number): Uint8Array {
    const value = this.#get(key);
    if (value instanceof Uint8Array && value.length >= min && value.length <= max) return value;
    throw this.wrong(key, min === max ? `${min} bytes` : `${min} to ${max} bytes`);
  }

  /** Reads pairs of uint32, little-endian. */
  pairs(key: string | number): Uint32Array {
    const bytes = this.bytes(key, 0, Number.MAX_SAFE_INTEGER);
    if (bytes.length % 8 !== 0) throw this.wrong(key, "pairs of uint32");
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    return Uint32Array.from({ length: bytes.length / 4 }, (_, index) =>
      view.getUint32(index * 4, true),
    );
  }

  map(key: string | number): Reader {
    return this.#inner(key, this.#get(key));
  }

  maps(key: string | number, min: number, max: number): Reader[] {
    return this.#list(key, min, max).map((value, index) => this.#inner(`${key}[${index}]`, value));
  }

  /** Reads a list of arrays of `width` values, or up to `more` longer, which older peers do not send. */
  rows(key: string | number, width: number, max: number, more = 0): Reader[] {
    return this.#list(key, 0, max).map((value, index) => {
      const isRow = Array.isArray(value) && value.length >= width && value.length <= width + more;
      if (isRow) {
        return new Reader(value, this.#name(`${key}[${index}]`), this.#peer);
      }
      throw this.wrong(`${key}[${index}]`, `${width} values`, value);
    });
  }

  /** True when a field is present; older peers do not send all. */
  has(key: string | number): boolean {
    return this.#get(key) !== undefined;
  }

  names(): string[] {
    return Object.keys(this.#fields);
  }

  wrong(key: string | number, expected: string, value: unknown = this.#get(key)): TierkvError {
    const reason = `${this.#name(key)} = ${show(value)}: expected ${expected}`;
    return new TierkvError("BAD_FRAME", { peer: this.#peer, reason });
  }

  #get(key: string | number): unknown {
    return Object.hasOwn(this.#fields, key) ? (this.#fields as Fields)[key] : undefined;
  }

  #list(key: string | number, min: number, max: number): readonly unknown[] {
    const value = this.#get(key);
    if (Array.isArray(value) && value.length >= min && value.length <= max) return value;
    throw this.wrong(key, `a list of ${min} to ${max}`);
  }

  #inner(key: string | number, value: unknown): Reader {
    if (typeof value === "object" && value !== null && !ArrayBuffer.isView(value)) {
      return new Reader(value as Fields, this.#name(key), this.#peer);
    }
    throw this.wrong(key, "a map", value);
  }

  #name(key: string | number): string {
    if (typeof key === "number") return `${this.#path}[${key}]`;
    return this.#path === "" ? key : `${this.#path}.${key}`;
  }
}

/** Shows a value in one short piece; of bytes, only their number. */
function show(value: unknown): string {
  if (value === undefined) return "nothing";
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (typeof value === "object" && value !== null) return "a map";
  const text = typeof value === "string" ? JSON.stringify(value) : `${value as number}`;
  return text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}...` : text;
}
