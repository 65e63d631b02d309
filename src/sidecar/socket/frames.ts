// Owns the framing of the local socket: uint32 length, then one msgpack map, with every size checked before decoding.
import { decode, Encoder } from "@msgpack/msgpack";
import { TierkvError } from "../../base/errors.ts";
import {
  FRAME_BYTES_MAX,
  FRAME_DEPTH_MAX,
  FRAME_TEXT_BYTES_MAX,
  FRAME_VALUES_MAX,
} from "../../base/limits/general.ts";

const LENGTH_BYTES = 4;

/** The fields of one frame, by name; their types are still unknown. */
export type Fields = Readonly<Record<string, unknown>>;

/** An outgoing message; its bytes may be any view. */
export type Frame = Readonly<Record<string, unknown>>;

/** Shared, because making one takes ten times as long as encoding a small frame. */
const ENCODER = new Encoder();

export function encodeFrame(frame: Frame): Buffer {
  // A view of the encoder's memory, valid until the next frame.
  const body = ENCODER.encodeSharedRef(frame);
  const bytes = Buffer.allocUnsafe(LENGTH_BYTES + body.length);
  bytes.writeUInt32LE(body.length, 0);
  bytes.set(body, LENGTH_BYTES);
  return bytes;
}

/** Cuts a byte stream into frames. Holds at most one frame and the chunk that completed it. */
export class FrameDecoder {
  readonly #peer: string;
  #chunks: Buffer[] = [];
  #bytes = 0;
  #bodyBytes: number | null = null;
  #most: number;

  /** `most`: longest body taken for now, in bytes. */
  constructor(peer: string, most: number = FRAME_BYTES_MAX) {
    this.#peer = peer;
    this.#most = most;
  }

  /** Sets the longest body from the next frame on, in bytes. */
  allow(most: number): void {
    this.#most = most;
  }

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
  }

  /** Returns the next whole frame, or null when more bytes are needed. Throws BAD_FRAME, after which the stream is useless. */
  next(): Fields | null {
    if (this.#bodyBytes === null) {
      if (this.#bytes < LENGTH_BYTES) return null;
      const bodyBytes = this.#take(LENGTH_BYTES).readUInt32LE(0);
      if (bodyBytes === 0 || bodyBytes > this.#most) {
        throw this.#bad(`length ${bodyBytes}: expected 1 to ${this.#most}`);
      }
      this.#bodyBytes = bodyBytes;
    }
    if (this.#bytes < this.#bodyBytes) return null;
    const body = this.#take(this.#bodyBytes);
    this.#bodyBytes = null;
    return this.#parse(body);
  }

  #take(count: number): Buffer {
    const [first] = this.#chunks;
    if (first === undefined || first.length < count) this.#chunks = [Buffer.concat(this.#chunks)];
    const whole = this.#chunks[0] ?? Buffer.alloc(0);
    if (whole.length === count) this.#chunks.shift();
    else this.#chunks[0] = whole.subarray(count);
    this.#bytes -= count;
    return whole.subarray(0, count);
  }

  #parse(body: Buffer): Fields {
    checkShape(body, (reason) => this.#bad(reason));
    try {
      const value = decode(body);
      // checkShape has verified that the outermost value is a map.
      return value as Fields;
    } catch (error) {
      throw this.#bad(error instanceof Error ? error.message : "not msgpack");
    }
  }

  #bad(reason: string): TierkvError {
    return new TierkvError("BAD_FRAME", { peer: this.#peer, reason });
  }
}

type Refuse = (reason: string) => TierkvError;

/**
 * Walks one msgpack value without building it: bounds depth, values and text lengths, and checks that every declared length lies
 * inside the frame. A decoder would trust such lengths and allocate for them first.
 */
function checkShape(body: Buffer, refuse: Refuse): void {
  if (!isMap(body[0] ?? 0)) throw refuse("not a map");
  // Number of values still to come, one entry per open array or map.
  const open: number[] = [1];
  let at = 0;
  let values = 0;
  while (open.length > 0) {
    const last = open.length - 1;
    const left = open[last] ?? 0;
    if (left === 0) {
      open.pop();
      continue;
    }
    open[last] = left - 1;
    values += 1;
    if (values > FRAME_VALUES_MAX) throw refuse(`more than ${FRAME_VALUES_MAX} values`);
    const head = readHead(body, at, refuse);
    at += head.bytes;
    if (at > body.length) throw refuse("a value ends behind the frame");
    if (head.children > 0) {
      if (open.length >= FRAME_DEPTH_MAX) throw refuse(`nested above ${FRAME_DEPTH_MAX} levels`);
      if (head.children > body.length - at) throw refuse("more values declared than bytes sent");
      open.push(head.children);
    }
  }
  if (at !== body.length) throw refuse(`${body.length - at} bytes behind the map`);
}

interface Head {
  /** Bytes of this value without its children. */
  bytes: number;
  children: number;
}

function isMap(tag: number): boolean {
  return (tag >= 0x80 && tag <= 0x8f) || tag === 0xde || tag === 0xdf;
}

/** Bytes behind a tag of fixed length, from 0xc0 on: nil, booleans, floats, unsigned, signed; -1: no such tag. */
const FIXED_BYTES = [0, -1, 0, 0, -1, -1, -1, -1, -1, -1, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8] as const;

type Kind = "bin" | "text" | "array" | "map";

/** Tags followed by a length: the kind of value, and the bytes of the length. */
const SIZED: ReadonlyMap<number, readonly [Kind, 1 | 2 | 4]> = new Map<
  number,
  readonly [Kind, 1 | 2 | 4]
>([
  [0xc4, ["bin", 1]],
  [0xc5, ["bin", 2]],
  [0xc6, ["bin", 4]],
  [0xd9, ["text", 1]],
  [0xda, ["text", 2]],
  [0xdb, ["text", 4]],
  [0xdc, ["array", 2]],
  [0xdd, ["array", 4]],
  [0xde, ["map", 2]],
  [0xdf, ["map", 4]],
]);

function readHead(body: Buffer, at: number, refuse: Refuse): Head {
  const tag = body[at];
  if (tag === undefined) throw refuse("a value ends behind the frame");
  if (tag < 0x80 || tag >= 0xe0) return { bytes: 1, children: 0 };
  if (tag < 0x90) return { bytes: 1, children: (tag - 0x80) * 2 };
  if (tag < 0xa0) return { bytes: 1, children: tag - 0x90 };
  if (tag < 0xc0) return { bytes: 1 + (tag - 0xa0), children: 0 };
  const fixed = FIXED_BYTES[tag - 0xc0] ?? -1;
  if (fixed >= 0) return { bytes: 1 + fixed, children: 0 };
  const sized = SIZED.get(tag);
  if (sized === undefined) throw refuse(`msgpack type 0x${tag.toString(16)} is not used here`);
  const [kind, lengthBytes] = sized;
  if (at + 1 + lengthBytes > body.length) throw refuse("a value ends behind the frame");
  return sizedHead(kind, body.readUIntBE(at + 1, lengthBytes), 1 + lengthBytes, refuse);
}

function sizedHead(kind: Kind, length: number, headBytes: number, refuse: Refuse): Head {
  if (kind === "array") return { bytes: headBytes, children: length };
  if (kind === "map") return { bytes: headBytes, children: length * 2 };
  if (kind === "text" && length > FRAME_TEXT_BYTES_MAX) {
    throw refuse(`a text of ${length} bytes: the limit is ${FRAME_TEXT_BYTES_MAX}`);
  }
  return { bytes: headBytes + length, children: 0 };
}

/** The bytes of slot numbers or pairs, little-endian, as frames carry them. */
export function slotBytes(numbers: readonly number[] | Uint32Array): Buffer {
  const bytes = Buffer.allocUnsafe(numbers.length * 4);
  let at = 0;
  for (const number of numbers) at = bytes.writeUInt32LE(number, at);
  return bytes;
}
