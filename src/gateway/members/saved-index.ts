// Owns the file in which a gateway saves its index: format, checks and bounds. Its content counts only once the engines confirm it.
import { closeSync, readSync } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { crc32 } from "node:zlib";
import { makeDirectory } from "../../base/directory.ts";
import { GATEWAY_SAVED_BYTES_MAX, GATEWAY_SAVED_CHUNK } from "../../base/limits/gateway.ts";
import { openOwn } from "../../base/own-file.ts";
import { randomId, yieldToLoop } from "../../base/time.ts";
import type { Mark } from "../events/feed.ts";
import type { SavedForm } from "../hashes/agreement.ts";
import type { BlockIndex } from "../index/index-of-blocks.ts";

/** Includes the version of the format. */
const MAGIC = "TKVGIX02";
/** Head of the file, and its end with the checksum. */
const HEAD_BYTES = 16;

/** One engine, or rank of an engine, whose events are followed. */
export interface Followed {
  /** Number in the index. */
  holder: number;
  /** `host:port` of its events. */
  events: string;
  mark: Mark;
  /** null: not agreed on. */
  form: SavedForm | null;
}

/** Saved state of one engine or rank. */
export interface Saved extends Omit<Followed, "holder"> {
  blocks: Buffer;
}

interface Head {
  engines: (Omit<Saved, "blocks"> & { bytes: number })[];
}

/** Content of a saved index, by the address of each engine's events. */
export type Loaded = Map<string, Saved>;

/** Writes the index as it is now; events may continue meanwhile. */
export async function saveIndex(
  path: string,
  index: BlockIndex,
  followed: readonly Followed[],
): Promise<void> {
  const parts = followed.map(({ holder }) => index.save(holder));
  const engines = followed.map(({ events, mark, form }, at) => ({
    events,
    mark,
    form,
    bytes: parts[at]?.length ?? 0,
  }));
  makeDirectory(dirname(path));
  const fresh = `${path}.${randomId(4)}`;
  const handle = await open(fresh, "wx", 0o600);
  try {
    let checksum = 0;
    for (const part of [beginning({ engines }), ...parts]) {
      for (let at = 0; at < part.length; at += GATEWAY_SAVED_CHUNK) {
        const piece = part.subarray(at, at + GATEWAY_SAVED_CHUNK);
        checksum = crc32(piece, checksum);
        await handle.writeFile(piece);
        await yieldToLoop();
      }
    }
    const end = Buffer.alloc(HEAD_BYTES);
    end.writeUInt32LE(checksum, 0);
    await handle.writeFile(end);
    await handle.sync();
    await rename(fresh, path);
  } finally {
    await handle.close();
    await rm(fresh, { force: true });
  }
}

function beginning(head: Head): Buffer {
  const body = Buffer.from(JSON.stringify(head));
  const first = Buffer.alloc(HEAD_BYTES);
  first.write(MAGIC, "latin1");
  first.writeUInt32LE(body.length, 8);
  return Buffer.concat([first, body]);
}

/** Returns null where there is no file. Throws where it is not ours, not whole, or of another version. */
export function loadIndex(path: string): Loaded | null {
  const file = read(path);
  if (file === null) return null;
  const end = file.length - HEAD_BYTES;
  const headBytes = end < HEAD_BYTES ? 0 : file.readUInt32LE(8);
  if (file.toString("latin1", 0, 8) !== MAGIC) throw new Error("it is of another version");
  if (end < HEAD_BYTES || file.readUInt32LE(end) !== crc32(file.subarray(0, end))) {
    throw new Error("it is not whole");
  }
  const { engines } = JSON.parse(file.toString("utf8", HEAD_BYTES, HEAD_BYTES + headBytes)) as Head;
  let at = HEAD_BYTES + headBytes;
  const saved = engines.map(({ bytes, ...one }): [string, Saved] => {
    at += bytes;
    return [one.events, { ...one, blocks: file.subarray(at - bytes, at) }];
  });
  return new Map(saved);
}

function read(path: string): Buffer | null {
  const refuse = (reason: string): never => {
    throw new Error(reason);
  };
  let handle: number;
  let size: number;
  try {
    const file = openOwn(path, refuse);
    handle = file.handle;
    size = file.stats.size;
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return null;
    throw error;
  }
  try {
    if (size > GATEWAY_SAVED_BYTES_MAX) refuse(`it has ${size} bytes`);
    const bytes = Buffer.alloc(size);
    if (readSync(handle, bytes) !== size) refuse("it is not whole");
    return bytes;
  } finally {
    closeSync(handle);
  }
}
