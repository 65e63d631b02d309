// Owns cutting records into pieces and packing pieces into chunks: small records share a chunk, large ones span several.
import { ItemStatus } from "../block.ts";
import { PIECE_BYTES_MIN, PIECE_OVERHEAD_BYTES } from "../limits.ts";
import type { Chunk, Piece } from "./messages.ts";

/** One record to send. `slice` gives a view of its bytes; it is called in ascending order, up to `recordBytes`. */
export interface RecordSource {
  item: number;
  recordBytes: number;
  slice(offset: number, length: number): Buffer;
}

/** An item of which nothing will come, and why. */
export interface ItemNote {
  item: number;
  status: ItemStatus;
}

const NO_BYTES = Buffer.alloc(0);

/**
 * Chunks of about `chunkBytes`, in the order of `sources`. Lazy: a source is asked for when its first byte is due, and
 * the next one only after all slices of the one before were taken.
 */
export function* packChunks(
  sources: Iterable<RecordSource | ItemNote>,
  chunkBytes: number,
): Generator<Chunk> {
  let pieces: Piece[] = [];
  let room = chunkBytes;
  for (const source of sources) {
    let offset = 0;
    do {
      const piece = cutPiece(source, offset, room);
      pieces.push(piece);
      offset += piece.data.length;
      room -= piece.data.length + PIECE_OVERHEAD_BYTES;
      if (room < PIECE_BYTES_MIN) {
        yield { pieces };
        pieces = [];
        room = chunkBytes;
      }
    } while ("slice" in source && offset < source.recordBytes);
  }
  if (pieces.length > 0) yield { pieces };
}

function cutPiece(source: RecordSource | ItemNote, offset: number, room: number): Piece {
  const { item } = source;
  if ("status" in source) {
    return { item, offset: 0, recordBytes: 0, data: NO_BYTES, status: source.status };
  }
  const data = source.slice(offset, Math.min(source.recordBytes - offset, room));
  return {
    item,
    offset,
    recordBytes: source.recordBytes,
    data,
    status: ItemStatus.UNSPECIFIED,
  };
}
