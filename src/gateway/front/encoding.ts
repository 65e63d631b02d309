// Owns decoding an engine's answer where the gateway must read it, though it asked for none encoded.
import type { IncomingHttpHeaders } from "node:http";
import { pipeline } from "node:stream";
import type { Duplex, Readable } from "node:stream";
import * as zlib from "node:zlib";

const { createBrotliDecompress, createGunzip, createInflate } = zlib;

/** undefined: Node before 22.15 cannot decode it. */
const zstd = (zlib as { createZstdDecompress?: () => Duplex }).createZstdDecompress;

const DECODERS: ReadonlyMap<string, (() => Duplex) | undefined> = new Map([
  ["br", createBrotliDecompress],
  ["deflate", createInflate],
  ["gzip", createGunzip],
  ["x-gzip", createGunzip],
  ["zstd", zstd],
]);

/** Whether an answer's bytes are not what the engine wrote. */
export const isEncoded = ({ "content-encoding": encoding }: IncomingHttpHeaders): boolean =>
  encoding !== undefined && encoding !== "identity";

/** An answer's headers and body; `isPlain`: its bytes are what the engine wrote. */
export interface Plain {
  headers: IncomingHttpHeaders;
  body: Readable;
  isPlain: boolean;
}

/** Decodes an encoded answer as it passes; one in an unknown encoding stays as it is. A damaged one ends with an error. */
export function decoded({ headers, body }: Pick<Plain, "headers" | "body">): Plain {
  const { "content-encoding": encoding, "content-length": _length, ...passed } = headers;
  const decoder = DECODERS.get(String(encoding).trim().toLowerCase())?.();
  if (decoder === undefined) return { headers, body, isPlain: false };
  // The reader hears of errors from the decoder.
  return { headers: passed, body: pipeline(body, decoder, () => {}), isPlain: true };
}
