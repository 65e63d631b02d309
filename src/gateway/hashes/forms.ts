// Owns the forms in which vLLM releases hash a prompt's blocks, and the resulting chain of hashes.
import { HASH_BYTES } from "../../base/block.ts";
import {
  GATEWAY_HASH_BLOCK_TOKENS_MAX,
  GATEWAY_HASHES_PER_SLICE,
} from "../../base/limits/gateway.ts";
import { hashBlocks, hashRoot } from "../../base/native.ts";
import { yieldToLoop } from "../../base/time.ts";
import type { Tokens } from "../index/index-of-blocks.ts";

/** Values of vLLM's `--prefix-caching-hash-algo`; xxhash is left out, because it names no block that engines share. */
export type Algorithm = "sha256_cbor" | "sha256";
export const ALGORITHMS: readonly Algorithm[] = ["sha256_cbor", "sha256"];

/** `bare`: salt and adapter name stand alone, as in 0.28; `tagged`: each in a tuple with its kind, as in 0.32. */
export type Tagging = "bare" | "tagged";

/** Start of all hashes of one engine. */
export interface Base {
  algorithm: Algorithm;
  /** vLLM's NONE_HASH, the parent of first blocks. */
  root: Buffer;
}

/** Inputs besides tokens that tell a prompt's blocks apart. */
export interface Apart {
  adapter: { name: string; path: string } | null;
  /** Salt of the first block, and so of the whole chain. */
  salt: string | null;
}

export const NOT_APART: Apart = { adapter: null, salt: null };

/** Seed of newer releases where PYTHONHASHSEED is not set; older ones draw the root. */
export const DEFAULT_SEED = "vllm-none-hash";

export function rootOf(algorithm: Algorithm, seed: string): Buffer {
  return hashRoot(algorithm, seed);
}

/** Where a block stands: what tells its prompt apart, whether the block begins it, and how its inputs are written. */
type How = readonly [Apart, boolean, Tagging];

/** Returns the tokens from..to, of ids in the core's own form without a copy. */
const part = (tokens: Tokens, from: number, to: number): Tokens =>
  tokens instanceof Uint32Array ? tokens.subarray(from, to) : tokens.slice(from, to);

function chained(
  { algorithm }: Base,
  parent: Uint8Array,
  tokens: Tokens,
  blockSize: number,
  [{ adapter, salt }, isFirst, tagging]: How,
): Buffer {
  if (blockSize > GATEWAY_HASH_BLOCK_TOKENS_MAX) return Buffer.alloc(0);
  const apart = {
    adapter: adapter?.name ?? "",
    path: adapter?.path ?? "",
    salt: salt ?? "",
    isTagged: tagging === "tagged",
  };
  // No engine has a token above, and the core takes no negative ones.
  const odd = tokens.findIndex((token) => token < 0 || token > 0x7fff_ffff);
  const known = odd < 0 ? tokens : part(tokens, 0, odd);
  const ids = known instanceof Uint32Array ? known : Uint32Array.from(known);
  return hashBlocks(algorithm, parent, ids, blockSize, apart, isFirst);
}

/** Hashes the tokens from..to as one block; null: no engine has such tokens, or the form of such large blocks is not known. */
export function hashOfBlock(
  base: Base,
  parent: Uint8Array,
  tokens: Tokens,
  [from, to]: readonly [number, number],
  how: How = [NOT_APART, true, "bare"],
): Buffer | null {
  const made = chained(base, parent, part(tokens, from, to), to - from, how);
  return made.length === HASH_BYTES ? made : null;
}

/** Returns the hashes of all full blocks up to `most`, 32 bytes each; yields between slices, so that others are served. */
export async function hashesOf(
  base: Base,
  tokens: Tokens,
  blockSize: number,
  [apart, tagging]: readonly [Apart, Tagging],
  most: number = Infinity,
): Promise<Buffer> {
  const count = Math.min(most, Math.floor(tokens.length / blockSize));
  const slices: Buffer[] = [];
  let parent = base.root;
  for (let block = 0; block < count; block += GATEWAY_HASHES_PER_SLICE) {
    if (block > 0) await yieldToLoop();
    const end = Math.min(count, block + GATEWAY_HASHES_PER_SLICE);
    const own = part(tokens, block * blockSize, end * blockSize);
    const made = chained(base, parent, own, blockSize, [apart, block === 0, tagging]);
    slices.push(made);
    if (made.length < (end - block) * HASH_BYTES) break;
    parent = made.subarray(-HASH_BYTES);
  }
  return slices.length === 1 ? (slices[0] ?? Buffer.alloc(0)) : Buffer.concat(slices);
}

/** Returns the low 64 bits of a hash, as events have them. */
export function lowOf(block: Buffer): bigint {
  return block.readBigUInt64BE(HASH_BYTES - 8);
}
