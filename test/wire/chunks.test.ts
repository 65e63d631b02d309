// Owns the tests of cutting records into pieces and packing pieces into chunks.
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { ItemStatus } from "../../src/block.ts";
import {
  CHUNK_BYTES_MAX,
  CHUNK_BYTES_MIN,
  MESSAGE_BYTES_MAX,
  PIECE_BYTES_MIN,
} from "../../src/limits.ts";
import { packChunks } from "../../src/wire/chunks.ts";
import type { RecordSource } from "../../src/wire/chunks.ts";
import type { Chunk } from "../../src/wire/messages.ts";
import { vaultService } from "../../src/wire/service.ts";
import { noise } from "../support/records.ts";

const BYTES = noise(400_000, 1);

function sourceOf(item: number, record: Buffer): RecordSource {
  const slice = (offset: number, length: number): Buffer =>
    record.subarray(offset, offset + length);
  return { item, recordBytes: record.length, slice };
}

function bytesIn(chunk: Chunk): number {
  return chunk.pieces.reduce((sum, piece) => sum + piece.data.length, 0);
}

describe("packChunks", () => {
  test("small records share a chunk, a large one spans several", () => {
    const small = [0, 1, 2].map((item) => sourceOf(item, noise(1000, item)));
    expect([...packChunks(small, CHUNK_BYTES_MIN)]).toHaveLength(1);

    const large = [...packChunks([sourceOf(0, noise(CHUNK_BYTES_MIN * 3, 0))], CHUNK_BYTES_MIN)];
    expect(large.map((chunk) => chunk.pieces[0]?.offset)).toEqual([0, 65_536, 131_072]);
  });

  test("any records come out whole, in order, in pieces that follow each other", () => {
    const sizes = fc.array(fc.integer({ min: 1, max: 300_000 }), { maxLength: 12 });
    const chunkSizes = fc.integer({ min: CHUNK_BYTES_MIN, max: CHUNK_BYTES_MAX });
    fc.assert(
      fc.property(sizes, chunkSizes, (lengths, chunkBytes) => {
        const records = lengths.map((length, item) => BYTES.subarray(item, item + length));
        const chunks = [
          ...packChunks(
            records.map((r, item) => sourceOf(item, r)),
            chunkBytes,
          ),
        ];
        const pieces = chunks.flatMap((chunk) => chunk.pieces);
        const got = records.map((_, item) => pieces.filter((piece) => piece.item === item));
        expect(pieces.every((piece, at) => piece === got.flat()[at])).toBe(true);
        for (const [item, record] of records.entries()) {
          const parts = got[item] ?? [];
          expect(Buffer.concat(parts.map((part) => part.data)).equals(record)).toBe(true);
          let offset = 0;
          for (const part of parts) {
            expect(part.offset).toBe(offset);
            offset += part.data.length;
          }
        }
        for (const chunk of chunks.slice(0, -1)) {
          expect(bytesIn(chunk)).toBeLessThanOrEqual(chunkBytes);
          expect(bytesIn(chunk)).toBeGreaterThan(chunkBytes - 2 * PIECE_BYTES_MIN);
        }
      }),
      { numRuns: 40 },
    );
  });

  test("the fullest chunk of the smallest pieces fits one message", () => {
    const tiny = Array.from({ length: 20_000 }, (_, item) => sourceOf(item, BYTES.subarray(0, 1)));
    for (const chunk of packChunks(tiny, CHUNK_BYTES_MAX)) {
      const encoded = vaultService.Fetch.responseSerialize({ chunk });
      expect(encoded.length).toBeLessThanOrEqual(MESSAGE_BYTES_MAX);
    }
  });

  test("a note becomes a piece without bytes, in its place", () => {
    const sources = [
      sourceOf(0, noise(10, 0)),
      { item: 1, status: ItemStatus.MISSING },
      sourceOf(2, noise(10, 2)),
    ];
    const [chunk] = [...packChunks(sources, CHUNK_BYTES_MIN)];
    expect(chunk?.pieces.map((piece) => [piece.item, piece.status, piece.data.length])).toEqual([
      [0, 0, 10],
      [1, ItemStatus.MISSING, 0],
      [2, 0, 10],
    ]);
  });

  test("is lazy: a source is asked for only when its bytes are due", () => {
    const asked: number[] = [];
    function* sources(): Generator<RecordSource> {
      for (let item = 0; item < 100; item += 1) {
        asked.push(item);
        yield sourceOf(item, noise(CHUNK_BYTES_MIN, item));
      }
    }
    const chunks = packChunks(sources(), CHUNK_BYTES_MIN);
    chunks.next();
    expect(asked.length).toBeLessThanOrEqual(2);
  });
});
