// Owns the forms in which vLLM releases hash a prompt's blocks, and the resulting chain of hashes.
import { hash } from "node:crypto";
import { HASH_BYTES } from "../../block.ts";
import { GATEWAY_HASH_BLOCK_TOKENS_MAX, GATEWAY_HASHES_PER_SLICE } from "../../limits/gateway.ts";
import { yieldToLoop } from "../../time.ts";
import { cborOfBlock, cborOfText, pickleOfBlock, pickleOfText } from "./encodings.ts";
import type { EncodeBlock, EncodeText, ExtraKeys } from "./encodings.ts";

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

const ENCODE: Readonly<Record<Algorithm, { block: EncodeBlock; text: EncodeText }>> = {
  sha256_cbor: { block: cborOfBlock, text: cborOfText },
  sha256: { block: pickleOfBlock, text: pickleOfText },
};

/** One call, because a hash object for each block takes twice the time. */
const sha256 = (bytes: Uint8Array): Buffer => hash("sha256", bytes, "buffer");

export function rootOf(algorithm: Algorithm, seed: string): Buffer {
  return sha256(ENCODE[algorithm].text(seed));
}

/** Returns null where the hash has no inputs besides tokens. */
function extraOf({ adapter, salt }: Apart, isFirst: boolean, tagging: Tagging): ExtraKeys | null {
  const isTagged = tagging === "tagged";
  const keys: (string | string[])[] = [];
  if (adapter !== null) keys.push(isTagged ? ["lora", adapter.name, adapter.path] : adapter.name);
  if (isFirst && salt !== null) keys.push(isTagged ? ["cache_salt", salt] : salt);
  return keys.length === 0 ? null : keys;
}

/** Hashes the tokens from..to; null: no engine has such tokens, or the form of such large blocks is not known. */
export function hashOfBlock(
  { algorithm }: Base,
  parent: Uint8Array,
  tokens: readonly number[],
  [from, to]: readonly [number, number],
  [apart, isFirst, tagging]: readonly [Apart, boolean, Tagging] = [NOT_APART, true, "bare"],
): Buffer | null {
  if (to - from > GATEWAY_HASH_BLOCK_TOKENS_MAX) return null;
  for (let at = from; at < to; at += 1) {
    const token = tokens[at] ?? -1;
    if (token < 0 || token > 0x7fff_ffff) return null;
  }
  return sha256(
    ENCODE[algorithm].block(parent, tokens, from, to, extraOf(apart, isFirst, tagging)),
  );
}

/** Returns the hashes of all full blocks up to `most`, 32 bytes each; yields between slices, so that others are served. */
export async function hashesOf(
  base: Base,
  tokens: readonly number[],
  blockSize: number,
  [apart, tagging]: readonly [Apart, Tagging],
  most: number = Infinity,
): Promise<Buffer> {
  const count = Math.min(most, Math.floor(tokens.length / blockSize));
  const hashes = Buffer.alloc(count * HASH_BYTES);
  let parent = base.root;
  for (let block = 0; block < count; block += 1) {
    if (block > 0 && block % GATEWAY_HASHES_PER_SLICE === 0) await yieldToLoop();
    const range = [block * blockSize, (block + 1) * blockSize] as const;
    const made = hashOfBlock(base, parent, tokens, range, [apart, block === 0, tagging]);
    if (made === null) return hashes.subarray(0, block * HASH_BYTES);
    made.copy(hashes, block * HASH_BYTES);
    parent = made;
  }
  return hashes;
}

/** Returns the low 64 bits of a hash, as events have them. */
export function lowOf(block: Buffer): bigint {
  return block.readBigUInt64BE(HASH_BYTES - 8);
}
