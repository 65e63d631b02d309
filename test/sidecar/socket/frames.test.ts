// Owns the proof of the framing: any cut of the stream gives the same frames, and no input does harm.
import { encode } from "@msgpack/msgpack";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { isTierkvError } from "../../../src/base/errors.ts";
import { FRAME_BYTES_MAX, FRAME_TEXT_BYTES_MAX } from "../../../src/base/limits/general.ts";
import { encodeFrame, FrameDecoder } from "../../../src/sidecar/socket/frames.ts";
import type { Fields } from "../../../src/sidecar/socket/frames.ts";

const NESTED = Array.from({ length: 40 }, () => 0x91);

const scalar = fc.oneof(
  fc.integer(),
  fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER }),
  fc.double({ noNaN: true }),
  fc.string(),
  fc.boolean(),
  fc.constant(null),
  fc.uint8Array({ maxLength: 300 }),
);
/** Any name except the one that a decoder refuses at every depth. */
const name = fc.string().filter((text) => text !== "__proto__");
const value = fc.oneof(
  scalar,
  fc.array(scalar, { maxLength: 20 }),
  fc.dictionary(name, fc.array(scalar, { maxLength: 4 }), { maxKeys: 5 }),
);
const fields = fc.dictionary(name, value, { maxKeys: 8 });

function framed(body: Uint8Array): Buffer {
  const head = Buffer.alloc(4);
  head.writeUInt32LE(body.length);
  return Buffer.concat([head, body]);
}

function decodeAll(chunks: readonly Buffer[]): Fields[] {
  const decoder = new FrameDecoder("test");
  const frames: Fields[] = [];
  for (const chunk of chunks) {
    decoder.push(chunk);
    for (let frame = decoder.next(); frame !== null; frame = decoder.next()) frames.push(frame);
  }
  return frames;
}

/** Returns the stream cut at the given places. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const ends = [...places.map((place) => place % (bytes.length + 1)), bytes.length];
  ends.sort((a, b) => a - b);
  return ends.map((end, index) => bytes.subarray(index === 0 ? 0 : ends[index - 1], end));
}

function refusal(body: Uint8Array): string {
  try {
    decodeAll([framed(body)]);
  } catch (error) {
    if (isTierkvError(error) && error.code === "BAD_FRAME") return error.message;
    throw error;
  }
  return "";
}

describe("whole frames", () => {
  test("come out as they went in, however the stream is cut", () => {
    fc.assert(
      fc.property(
        fc.array(fields, { minLength: 1, maxLength: 6 }),
        fc.array(fc.nat(), { maxLength: 12 }),
        (sent, places) => {
          const bytes = Buffer.concat(sent.map((frame) => encodeFrame(frame)));
          // Compared as JSON, because bin returns as a Buffer and -0 as 0, which are equal to every reader.
          expect(JSON.stringify(decodeAll(cut(bytes, places)))).toBe(
            JSON.stringify(decodeAll([bytes])),
          );
          expect(decodeAll([bytes])).toHaveLength(sent.length);
          expect(Object.keys(decodeAll([bytes])[0]!)).toEqual(Object.keys(sent[0]!));
        },
      ),
    );
  });

  test("keep numbers, texts and bytes", () => {
    const sent = { t: "x", n: 2 ** 40, text: "späte Ä", bytes: Buffer.from([1, 2, 255]), no: null };
    expect(decodeAll([encodeFrame(sent)])[0]).toEqual(sent);
  });
});

describe("invalid frames", () => {
  test("are refused with BAD_FRAME, never with anything else, whatever the bytes", () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: 1, maxLength: 400 }), (body) => {
        const reason = refusal(body);
        expect(reason === "" || reason.startsWith("bad frame from test: ")).toBe(true);
      }),
      { numRuns: 2000 },
    );
  });

  test("are refused also when one byte of a good frame is changed", () => {
    fc.assert(
      fc.property(fields, fc.nat(), fc.integer({ min: 1, max: 255 }), (frame, place, change) => {
        const body = Buffer.from(encode(frame));
        const at = place % body.length;
        body[at] = body[at]! ^ change;
        refusal(body);
      }),
      { numRuns: 1000 },
    );
  });

  test.each([
    ["a length of 0", Buffer.alloc(4), "length 0"],
    ["a length above the limit", Buffer.from([1, 0, 64, 0]), `expected 1 to ${FRAME_BYTES_MAX}`],
  ])("%s", (_name, bytes, reason) => {
    expect(() => decodeAll([bytes])).toThrow(reason);
  });

  test.each([
    ["a number", [0x01], "not a map"],
    ["an array", [0x91, 0x01], "not a map"],
    ["a value cut off", [0x81, 0xa1, 0x61, 0xcd, 0x01], "ends behind the frame"],
    ["bytes cut off", [0x81, 0xa1, 0x61, 0xc4, 0x05, 0x00], "ends behind the frame"],
    ["more values than bytes", [0x81, 0xa1, 0x61, 0xdd, 0x7f, 0xff, 0xff, 0xff], "than bytes sent"],
    ["something behind the map", [0x80, 0x00], "behind the map"],
    ["an extension type", [0x81, 0xa1, 0x61, 0xd4, 0x00, 0x00], "0xd4 is not used"],
    ["a map as a key", [0x81, 0x80, 0x01], "key"],
    ["nesting", [...NESTED, 0x01], "not a map"],
    ["nesting inside a map", [0x81, 0xa1, 0x61, ...NESTED, 0x01], "nested above"],
  ])("%s", (_name, body, reason) => {
    expect(refusal(Buffer.from(body))).toContain(reason);
  });

  test("a text above the limit, and more values than the limit", () => {
    expect(refusal(encode({ t: "x".repeat(FRAME_TEXT_BYTES_MAX + 1) }))).toContain("a text of");
    expect(refusal(encode({ t: Array(70_000).fill(1) }))).toContain("more than 65536 values");
  });

  test("arrays that declare much and hold nothing take no memory", () => {
    // 100,000 nested claims of 65,535 values each, which would take gigabytes if built first.
    const claims = Buffer.concat(Array(100_000).fill(Buffer.from([0xdc, 0xff, 0xff])) as Buffer[]);
    const before = process.memoryUsage().heapTotal;
    expect(refusal(Buffer.concat([Buffer.from([0x81, 0xa1, 0x61]), claims]))).toContain("nested");
    expect(process.memoryUsage().heapTotal - before).toBeLessThan(64 * 1024 * 1024);
  });
});
