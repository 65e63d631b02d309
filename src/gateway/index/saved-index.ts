// Owns the file in which a gateway saves its index: format, checks and bounds. Its content counts only once the engines confirm it.
import { closeSync, readSync } from "node:fs";
import { open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { crc32 } from "node:zlib";
import { makeDirectory } from "../../directory.ts";
import { GATEWAY_SAVED_BYTES_MAX, GATEWAY_SAVED_CHUNK } from "../../limits/gateway.ts";
import { openOwn } from "../../own-file.ts";
import { randomId, yieldToLoop } from "../../time.ts";
import type { Tier } from "../events/batch.ts";
import type { Mark } from "../events/feed.ts";
import type { Seeds } from "./chain.ts";
import type { BlockIndex, Stock } from "./index-of-blocks.ts";

/** Includes the version of the format. */
const MAGIC = "TKVGIX01";
const TIERS: readonly Tier[] = ["gpu", "vault"];
/** Head of the file, and of each part: engine, tier and count of blocks, or the end and the checksum. */
const HEAD_BYTES = 16;
const END = 0xffff_ffff;
/** Engine's block name (uint64) and ours (float64), in native byte order because the file stays on this machine. */
const PAIR_BYTES = 16;

/** One engine whose events are followed. */
export interface Followed {
  slot: number;
  /** `host:port` of its events. */
  events: string;
  mark: Mark;
}

/** Saved state of one engine. */
export interface Saved extends Stock {
  events: string;
  mark: Mark;
}

interface Head {
  seeds: Seeds;
  engines: Omit<Saved, "parts">[];
}

/**
 * Writes the index while events continue: a reader replays all events after the marks, which corrects later changes. Returns
 * false and keeps the old file where blocks were dropped meanwhile, because no events repeat that.
 */
export async function saveIndex(
  path: string,
  index: BlockIndex,
  followed: readonly Followed[],
): Promise<boolean> {
  const { seeds, drops } = index;
  const engines = followed.map(({ slot, events, mark }) => ({ ...index.told(slot), events, mark }));
  const head: Head = { seeds, engines };
  makeDirectory(dirname(path));
  const fresh = `${path}.${randomId(4)}`;
  const handle = await open(fresh, "wx", 0o600);
  try {
    let checksum = 0;
    const write = async (bytes: Buffer): Promise<void> => {
      checksum = crc32(bytes, checksum);
      await handle.writeFile(bytes);
      await yieldToLoop();
    };
    await write(beginning(head));
    for (const part of parts(index, followed)) await write(part);
    const end = Buffer.alloc(HEAD_BYTES);
    end.writeUInt32LE(END, 0);
    end.writeUInt32LE(checksum, 4);
    await handle.writeFile(end);
    await handle.sync();
    if (index.drops !== drops) return false;
    await rename(fresh, path);
    return true;
  } finally {
    await handle.close();
    await rm(fresh, { force: true });
  }
}

/** Pads with spaces, so that pairs lie at multiples of their size. */
function beginning(head: Head): Buffer {
  const text = JSON.stringify(head);
  const body = Buffer.from(text.padEnd(Math.ceil(text.length / PAIR_BYTES) * PAIR_BYTES));
  const first = Buffer.alloc(HEAD_BYTES);
  first.write(MAGIC, "latin1");
  first.writeUInt32LE(body.length, 8);
  return Buffer.concat([first, body]);
}

function* parts(index: BlockIndex, followed: readonly Followed[]): Generator<Buffer> {
  for (const [at, { slot }] of followed.entries()) {
    for (const [number, tier] of TIERS.entries()) {
      let pairs: [bigint, number][] = [];
      for (const pair of index.names(slot, tier)) {
        if (pairs.push(pair) < GATEWAY_SAVED_CHUNK) continue;
        yield partOf(at, number, pairs);
        pairs = [];
      }
      if (pairs.length > 0) yield partOf(at, number, pairs);
    }
  }
}

function partOf(engine: number, tier: number, pairs: readonly [bigint, number][]): Buffer {
  const bytes = new ArrayBuffer(HEAD_BYTES + pairs.length * PAIR_BYTES);
  new Uint32Array(bytes, 0, 3).set([engine, tier, pairs.length]);
  const hashes = new BigUint64Array(bytes, HEAD_BYTES);
  const names = new Float64Array(bytes, HEAD_BYTES);
  for (const [at, [hash, name]] of pairs.entries()) {
    hashes[2 * at] = hash;
    names[2 * at + 1] = name;
  }
  return Buffer.from(bytes);
}

/** Content of a saved index, by the address of each engine's events. */
export interface Loaded {
  seeds: Seeds;
  engines: Map<string, Saved>;
}

/** Returns null where there is no file. Throws where it is not ours, not whole, or of another version. */
export function loadIndex(path: string): Loaded | null {
  const bytes = read(path);
  if (bytes === null) return null;
  const file = Buffer.from(bytes);
  const headBytes = file.length < 2 * HEAD_BYTES ? 0 : file.readUInt32LE(8);
  const end = file.length - HEAD_BYTES;
  if (file.toString("latin1", 0, 8) !== MAGIC) throw new Error("it is of another version");
  const isEnd = file.readUInt32LE(end) === END;
  if (!isEnd || file.readUInt32LE(end + 4) !== crc32(file.subarray(0, end))) {
    throw new Error("it is not whole");
  }
  const head = JSON.parse(file.toString("utf8", HEAD_BYTES, HEAD_BYTES + headBytes)) as Head;
  const engines = head.engines.map((engine): Saved => ({ ...engine, parts: [] }));
  for (let at = HEAD_BYTES + headBytes; at < end;) {
    const [engine = 0, tier = 0, count = 0] = new Uint32Array(bytes, at, 3);
    const hashes = new BigUint64Array(bytes, at + HEAD_BYTES, 2 * count);
    const names = new Float64Array(bytes, at + HEAD_BYTES, 2 * count);
    engines[engine]?.parts.push({ tier: TIERS[tier] ?? "gpu", hashes, names });
    at += HEAD_BYTES + count * PAIR_BYTES;
  }
  return { seeds: head.seeds, engines: new Map(engines.map((each) => [each.events, each])) };
}

function read(path: string): ArrayBuffer | null {
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
    const bytes = new ArrayBuffer(size);
    if (readSync(handle, new Uint8Array(bytes)) !== size) refuse("it is not whole");
    return bytes;
  } finally {
    closeSync(handle);
  }
}
